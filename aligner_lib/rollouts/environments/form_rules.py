"""Instructions whose form a program checks: one sentence, three dashes, fewer than ten words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require


@dataclass(frozen=True)
class Form:
    """A rule of form: how it is asked for, and what obeys it."""

    wordings: tuple[str, ...]
    holds: Callable[[str], bool]


class FormRules(Environment):
    """A topic and a form that the answer must have; the reward is 1 where it has it.

    What the answer says is not judged. Every topic comes with every form; which wording asks for it, the seed says.
    `held_out` of the topics are the validation split's. forms: names of FORMS, by default all. topics: your own.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        forms: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        held_out: float = 0.3,
    ):
        super().__init__(split)
        self.forms = list(FORMS) if forms is None else list(forms)
        unknown = [name for name in self.forms if name not in FORMS]
        require(not unknown, f"forms={forms}: there is no {', '.join(unknown)}; there are {', '.join(FORMS)}")
        require(bool(self.forms), "forms=[]: it takes at least one")
        self.topics = hold_out(TOPICS if topics is None else list(topics), held_out)[split]
        self.size = len(self.forms) * len(self.topics)

    def reset(self, seed: int) -> list[Message]:
        # Neighbouring seeds differ in form and in topic, so that any stretch of them is a fair sample of both.
        row, column = divmod(seed % self.size, len(self.forms))
        self.form = self.forms[column]
        topic = self.topics[(row + column) % len(self.topics)]
        draw = Random(seed)
        opening, wording = draw.choice(OPENINGS), draw.choice(FORMS[self.form].wordings)
        return [{"role": "user", "content": f"{opening.format(topic=topic)} {wording}"}]

    def step(self, response: str) -> Step:
        obeys = float(FORMS[self.form].holds(response))
        return Step(obeys, metrics={f"form/{self.form}": obeys, "words": len(words(response))})


# ---- what a program can see of a text --------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """What stands between white space and has a letter or a digit in it."""
    return [word for word in text.split() if any(map(str.isalnum, word))]


def sentences(text: str) -> list[str]:
    """What ends with . ! or ? before white space or the end; the last may lack its end. A full stop within a number is
    none, that of an abbreviation is one."""
    parts = re.split(r"""(?<=[.!?])["'”’)\]]*\s+""", text.strip())
    return [part for part in parts if words(part)]


def has_sentences(count: int) -> Callable[[str], bool]:
    """Whether a text is that many sentences, each with its end."""
    return lambda text: (
        len(sentences(text)) == count and bool(re.search(r"""[.!?]["'”’)\]]*$""", text.strip()))
    )


def begins_with(word: str) -> Callable[[str], bool]:
    """Whether a text's first word is this one, without regard to case."""
    return lambda text: re.match(rf"{word}\b", text.strip(), re.IGNORECASE) is not None


def dashes(text: str) -> int:
    """The lines that begin with a dash and go on with a word."""
    return sum(line.lstrip().startswith(("-", "–", "—")) and bool(words(line)) for line in text.splitlines())


FORMS = {
    "one_sentence": Form(
        ("Answer in one sentence.", "Use exactly one sentence.", "Say it in a single sentence."), has_sentences(1)
    ),
    "two_sentences": Form(
        ("Answer in exactly two sentences.", "Use two sentences, no more and no fewer.", "Write two sentences."),
        has_sentences(2),
    ),
    "under_ten_words": Form(
        ("Use fewer than ten words.", "Answer in less than ten words.", "Keep it under ten words."),
        lambda text: 1 <= len(words(text)) < 10,
    ),
    "thirty_words": Form(
        ("Use at least thirty words.", "Write thirty words or more.", "Give an answer of no fewer than thirty words."),
        lambda text: len(words(text)) >= 30,
    ),
    "question": Form(
        ("End with a question.", "Your last sentence must be a question.", "Finish by asking me something."),
        lambda text: text.rstrip().endswith("?") and bool(words(text)),
    ),
    "begins_with_sure": Form(
        ('Begin with the word "Sure".', 'Start your answer with "Sure".', 'The first word must be "Sure".'),
        begins_with("sure"),
    ),
    "begins_with_well": Form(
        ('Begin with the word "Well".', 'Start your answer with "Well".', 'The first word must be "Well".'),
        begins_with("well"),
    ),
    "three_dashes": Form(
        (
            "Give a list of three points, each on a line that begins with a dash.",
            "Write three lines, each with a dash in front.",
            "Answer with a list of exactly three dashes.",
        ),
        lambda text: dashes(text) == 3,
    ),
    "because": Form(
        ('Use the word "because".', 'Your answer must contain "because".', 'Give a reason with the word "because".'),
        lambda text: re.search(r"\bbecause\b", text, re.IGNORECASE) is not None,
    ),
    "number": Form(
        ("Include a number in digits.", "Use at least one number, written in digits.", "Mention a figure, such as 7."),
        lambda text: any(map(str.isdigit, text)),
    ),
    "exclamation": Form(
        ("End with an exclamation mark.", "Finish with an exclamation mark.", "The last character must be !"),
        lambda text: text.rstrip().endswith("!") and bool(words(text)),
    ),
    "lower_case": Form(
        ("Use lower case only.", "Write everything in small letters.", "Use no capital letters."),
        lambda text: any(map(str.islower, text)) and not any(map(str.isupper, text)),
    ),
}  # fmt: skip

OPENINGS = (
    "Tell me about {topic}.",
    "Write about {topic}.",
    "Say something about {topic}.",
    "Describe {topic}.",
)
TOPICS = [
    "bread", "the sea", "cats", "bicycles", "winter", "the moon", "apples", "libraries", "trains", "honey", "mountains",
    "football", "tea", "rain", "gardens", "music", "dreams", "the desert", "elephants", "clocks", "cheese", "bridges",
    "dogs", "rivers", "chess", "maps", "coffee", "birds", "ice", "schools", "candles", "forests", "soup", "kites",
    "the sun", "letters", "horses", "markets", "glass", "sleep", "lighthouses", "paper", "bees", "painting", "shoes",
    "thunder", "oranges", "castles", "swimming", "old books",
]  # fmt: skip
