"""Instructions with requirements drawn for each prompt, and a program that checks whether an answer is good."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require
from aligner_lib.rollouts.environments.instructions import form_metrics
from data.drawn_forms import ASKED, NUMBERS, OPENERS, TITLES, requests
from data.forms import FORMS, Instruction, ended, has_word
from data.gold import ENDINGS, judge


class FormRules(Environment):
    """Asks for a text on a topic in a form. The reward is 1 when a program finds the answer good (data/gold.py).

    A good answer meets the form's instruction, has words of its own and a word of its topic, does not repeat itself, and ends
    with a full stop or similar punctuation. The final punctuation is required because the text alone does not show whether the
    policy ended the response.

    Every topic is combined with every form. The seed draws the wording and the form's details, so neither a constant answer nor
    an echo of the prompt is good. One cheat remains possible, because each response is judged alone: a response that combines
    the requested details, the topic and a constant sentence. The metric `good` compares the responses of a step with each
    other. The share `held_out` of the topics is for validation.

    forms: names of data/forms.py, by default the forms whose details are drawn. topics: the user's own.
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
    """A form with its gaps drawn. A requested word belongs to another topic and is not in the question."""
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
