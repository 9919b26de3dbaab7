"""Instructions that ask for something drawn for the prompt, and a program that finds an answer good or not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require
from aligner_lib.rollouts.environments.instructions import form_metrics
from data.forms import FORMS, Instruction, ended, has_word
from data.gold import judge
from data.sample_text.drawn import ASKED, ENDINGS, NUMBERS, OPENERS, TITLES, requests


class FormRules(Environment):
    """Asks for a text on a topic in a form; the reward is 1 when a program finds the answer good (data/gold.py).

    A good answer has the form, words of its own and a word of its topic, does not repeat itself, and ends with a full stop or the
    like: the text alone does not show whether a policy ended it. Every topic comes with every form; the seed draws the wording and
    what it asks for, so that no constant answer and no echo is good. One cheat is left, because a response is judged alone: what was
    asked for, the topic and a constant sentence. The metric `good` judges a step's responses beside each other. The share `held_out` of the topics is for validation.
    forms: names of data/forms.py, by default those that ask for something drawn. topics: the user's own.
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
        self.forms = list(ASKED) if forms is None else list(forms)
        unknown = [name for name in self.forms if name not in FORMS]
        require(not unknown, f"forms={forms}: there is no {', '.join(unknown)}; there are {', '.join(FORMS)}")
        require(bool(self.forms), "forms=[]: give at least one")
        self.topics = hold_out(TOPICS if topics is None else list(topics), held_out)[split]
        self.size = len(self.forms) * len(self.topics)

    def reset(self, seed: int) -> list[Message]:
        # Neighbouring seeds differ in form and in topic, so that any range of seeds is a fair sample of both.
        row, column = divmod(seed % self.size, len(self.forms))
        topic, draw = self.topics[(row + column) % len(self.topics)], Random(seed)
        instruction = drawn_instruction(self.forms[column], topic, draw)
        wording = instruction.worded(draw.choice(requests(instruction.form)))
        self.turn = f"{draw.choice(OPENINGS).format(topic=topic)} {wording}"
        return [{"role": "user", "content": self.turn}]

    def step(self, response: str) -> Step:
        parts = judge(self.turn, response, finished=ended(response))
        seen = {
            "own_words": parts.own_words,
            "on_topic": parts.on_topic,
            "varied": parts.varied,
            "ended": parts.ended,
        }
        return Step(
            float(parts.good),
            metrics=form_metrics(self.turn, response) | {name: float(holds) for name, holds in seen.items()},
        )


def drawn_instruction(form: str, topic: str, draw: Random) -> Instruction:
    """A form with its gaps drawn. A word that is asked for belongs to another topic, and is not in the question."""
    words = [word for word in (other.split()[-1] for other in TOPICS) if not has_word(topic, word)]
    drawn = {"phrase": ENDINGS, "title": TITLES, "word": OPENERS if form == "first_word" else words}
    gaps = []
    for gap, values in dict(FORMS[form].gaps).items():
        choice = values if not isinstance(values, str) else drawn.get(gap) or [str(n) for n in NUMBERS]
        gaps.append((gap, draw.choice(choice)))
    return Instruction(form, tuple(gaps))


OPENINGS = (
    "Tell me about {topic}.",
    "Write about {topic}.",
    "Say something about {topic}.",
    "What do you know about {topic}?",
)
TOPICS = [
    "bread", "the sea", "cats", "bicycles", "winter", "the moon", "apples", "libraries", "trains", "honey", "mountains",
    "football", "tea", "rain", "gardens", "music", "dreams", "the desert", "elephants", "clocks", "cheese", "bridges",
    "dogs", "rivers", "chess", "maps", "coffee", "birds", "ice", "schools", "candles", "forests", "soup", "kites",
    "the sun", "letters", "horses", "markets", "glass", "sleep", "lighthouses", "paper", "bees", "painting", "shoes",
    "thunder", "oranges", "castles", "swimming", "books",
]  # fmt: skip
