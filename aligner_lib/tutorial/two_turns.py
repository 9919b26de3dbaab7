"""Questions with a second turn that builds on the first answer, put to a policy; and a judge that compares two answers.

The questions (`data/samples/two-turn-questions.jsonl`) are this project's own, in the shape of MT-bench (Zheng et al. 2023,
arXiv:2306.05685).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from aligner_lib.errors import UserError
from data.sources import SAMPLES

QUESTIONS = SAMPLES / "two-turn-questions.jsonl"
INSTRUCTION = (
    "Two assistants have answered the same user. Judge their last answers: are they true, to the point, and fit for what "
    "the user asked? Length alone is no virtue. End with one word on a line of its own: FIRST, SECOND or TIE."
)
VERDICTS = {"FIRST": 1.0, "TIE": 0.5, "SECOND": 0.0}


@dataclass(frozen=True)
class TwoTurns:
    """A question of two turns."""

    category: str
    turns: tuple[str, str]


@dataclass(frozen=True)
class Dialogue:
    """A question of two turns, and a policy's answers."""

    question: TwoTurns
    answers: tuple[str, str]

    @property
    def prompt(self) -> str:
        """What the second answer answers: a conversation that waits for the assistant."""
        first, second = self.question.turns
        return f"User: {first}\n\nAssistant: {self.answers[0]}\n\nUser: {second}\n\nAssistant:"

    def __str__(self) -> str:
        return f"{self.prompt} {self.answers[1]}"


def two_turn_questions(count: int | None = None) -> list[TwoTurns]:
    """The first `count` questions, one of each category in turn; None: all of them."""
    read = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    all_of_them = [TwoTurns(one["category"], tuple(one["turns"])) for one in read]
    by_category = [list(group) for _, group in groupby(all_of_them, key=lambda one: one.category)]
    in_turn = sorted(
        ((place, number, one) for number, group in enumerate(by_category) for place, one in enumerate(group)),
        key=lambda item: item[:2],
    )
    return [one for _, _, one in in_turn][:count]


def ask_in_turns(answer: Callable[[str], str], questions: Sequence[TwoTurns]) -> list[Dialogue]:
    """Put both turns of each question to a policy. answer: of a conversation, as `jobs.inference.answering` gives it."""
    dialogues = []
    for question in questions:
        first = answer(f"User: {question.turns[0]}\n\nAssistant:")
        unanswered = Dialogue(question, (first, ""))
        dialogues.append(Dialogue(question, (first, answer(unanswered.prompt))))
    return dialogues


@dataclass(frozen=True)
class Judge:
    """A language model that says which of two dialogues ends better.

    answer: what it answers to a text: `jobs.served.answering_at(URL, token, model=…, temperature=0)` for one behind an
    OpenAI-compatible endpoint.
    """

    answer: Callable[[str], str]

    def compare(self, own: Dialogue, other: Dialogue) -> float:
        """1 where `own` ends better, 0 where `other` does, else 0.5.

        It is asked twice, with the two in exchanged places: a judge that prefers whatever stands first says "tie".
        Raises UserError for an answer with neither of the three words.
        """
        forth, back = self._verdict(own, other), 1.0 - self._verdict(other, own)
        return forth if forth == back else 0.5

    def _verdict(self, first: Dialogue, second: Dialogue) -> float:
        said = self.answer(
            f"{INSTRUCTION}\n\n[The first assistant]\n{first}\n\n[The second assistant]\n{second}"
        )
        verdicts = re.findall(rf"\b({'|'.join(VERDICTS)})\b", said.upper())
        if not verdicts:
            raise UserError(f"the judge gave no verdict (FIRST, SECOND or TIE): {said[-200:]!r}")
        return VERDICTS[verdicts[-1]]
