"""Instructions whose form a program checks: one sentence, three dashes, fewer than ten words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require
from data.forms import DASHES, begins, ended, has_word, listed, sentences, words


@dataclass(frozen=True)
class FormRule:
    """A rule of form: the wordings that ask for it, and the check of a response."""

    wordings: tuple[str, ...]
    holds: Callable[[str], bool]


class FormRules(Environment):
    """Asks for a text on a topic in a given form; the reward is 1 when the response has the form.

    The content of the response is not judged. Every topic comes with every form; the seed chooses the wording of the rule.
    The share `held_out` of the topics is for validation. forms: names of FORMS, by default all. topics: the user's own.
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
        require(bool(self.forms), "forms=[]: give at least one")
        self.topics = hold_out(TOPICS if topics is None else list(topics), held_out)[split]
        self.size = len(self.forms) * len(self.topics)

    def reset(self, seed: int) -> list[Message]:
        # Neighbouring seeds differ in form and in topic, so that any range of seeds is a fair sample of both.
        row, column = divmod(seed % self.size, len(self.forms))
        self.form = self.forms[column]
        topic = self.topics[(row + column) % len(self.topics)]
        draw = Random(seed)
        opening, wording = draw.choice(OPENINGS), draw.choice(FORMS[self.form].wordings)
        return [{"role": "user", "content": f"{opening.format(topic=topic)} {wording}"}]

    def step(self, response: str) -> Step:
        obeys = float(FORMS[self.form].holds(response))
        return Step(obeys, metrics={f"form/{self.form}": obeys, "words": len(words(response))})


# ---- the rules -------------------------------------------------------------------------------------------------------


def has_sentences(count: int) -> Callable[[str], bool]:
    """A check that a text has exactly `count` sentences, all of them complete."""
    return lambda text: len(sentences(text)) == count and ended(text)


FORMS = {
    "one_sentence": FormRule(
        ("Answer in one sentence.", "Use exactly one sentence.", "Say it in a single sentence."), has_sentences(1)
    ),
    "two_sentences": FormRule(
        ("Answer in exactly two sentences.", "Use two sentences, no more and no fewer.", "Write two sentences."),
        has_sentences(2),
    ),
    "under_ten_words": FormRule(
        ("Use fewer than ten words.", "Answer in less than ten words.", "Keep it under ten words."),
        lambda text: 1 <= len(words(text)) < 10,
    ),
    "thirty_words": FormRule(
        ("Use at least thirty words.", "Write thirty words or more.", "Give an answer of no fewer than thirty words."),
        lambda text: len(words(text)) >= 30,
    ),
    "question": FormRule(
        ("End with a question.", "Your last sentence must be a question.", "Finish by asking me something."),
        lambda text: text.rstrip().endswith("?") and bool(words(text)),
    ),
    "begins_with_sure": FormRule(
        ('Begin with the word "Sure".', 'Start your answer with "Sure".', 'The first word must be "Sure".'),
        lambda text: begins(text, "sure"),
    ),
    "begins_with_well": FormRule(
        ('Begin with the word "Well".', 'Start your answer with "Well".', 'The first word must be "Well".'),
        lambda text: begins(text, "well"),
    ),
    "three_dashes": FormRule(
        (
            "Give a list of three points, each on a line that begins with a dash.",
            "Write three lines, each with a dash in front.",
            "Answer with a list of exactly three dashes.",
        ),
        lambda text: listed(text, DASHES) == 3,
    ),
    "because": FormRule(
        ('Use the word "because".', 'Your answer must contain "because".', 'Give a reason with the word "because".'),
        lambda text: has_word(text, "because"),
    ),
    "number": FormRule(
        ("Include a number in digits.", "Use at least one number, written in digits.", "Mention a figure, such as 7."),
        lambda text: any(map(str.isdigit, text)),
    ),
    "exclamation": FormRule(
        ("End with an exclamation mark.", "Finish with an exclamation mark.", "The last character must be !"),
        lambda text: text.rstrip().endswith("!") and bool(words(text)),
    ),
    "lower_case": FormRule(
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
