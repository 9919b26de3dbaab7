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

from aligner_lib.tutorial.comparison.statistics import win_rate
from data.sources import SAMPLES

QUESTIONS = SAMPLES / "two-turn-questions.jsonl"
INSTRUCTION = (
    "Two assistants have answered the same user. Judge their last answers: are they true, to the point, and fit for what "
    "the user asked? Length alone is no virtue. End with one word on a line of its own: FIRST, SECOND or TIE."
)
VERDICTS = {"FIRST": 1.0, "TIE": 0.5, "SECOND": 0.0}
VERDICT_LINE = re.compile(
    rf"[\s*_#>`\"'\[]*(?:verdict\s*:)?[\s*_`\"'\[]*({'|'.join(VERDICTS)})[\s*_`\"'\].!]*", re.IGNORECASE
)


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
    all_of_them = [TwoTurns(record["category"], tuple(record["turns"])) for record in read]
    by_category = [list(group) for _, group in groupby(all_of_them, key=lambda question: question.category)]
    in_turn = sorted(
        (
            (place, number, question)
            for number, group in enumerate(by_category)
            for place, question in enumerate(group)
        ),
        key=lambda item: item[:2],
    )
    return [question for _, _, question in in_turn][:count]


def ask_in_turns(answer: Callable[[str], str], questions: Sequence[TwoTurns]) -> list[Dialogue]:
    """Put both turns of each question to a policy. answer: of a conversation, as `jobs.inference.answering` gives it."""
    dialogues = []
    for question in questions:
        first = answer(f"User: {question.turns[0]}\n\nAssistant:")
        unanswered = Dialogue(question, (first, ""))
        dialogues.append(Dialogue(question, (first, answer(unanswered.prompt))))
    return dialogues


@dataclass(frozen=True)
class Judgement:
    """What a judge says of pairs of dialogues.

    wins: of each pair that it decided, 1 for one's own dialogue, 0 for the other one, 0.5 for a tie; pairs: which pairs these
    are; not_understood: answers of the judge without a verdict, with an example of one. A pair with such an answer has no win.
    """

    wins: list[float]
    pairs: list[int]
    not_understood: int
    verdicts: int
    example: str = ""

    def __str__(self) -> str:
        rate = f"wins {win_rate(self.wins, self.pairs)}" if self.wins else "no pair was decided"
        if not self.not_understood:
            return rate
        return (
            f"{rate}; {self.not_understood} of {self.verdicts} verdicts were not understood, and their pairs are left out; "
            f"one ends with {self.example!r}"
        )


@dataclass(frozen=True)
class Judge:
    """A language model that says which of two dialogues ends better.

    answer: what it answers to a text: `jobs.served.answering_at(URL, token, model=…, temperature=0)` for one behind an
    OpenAI-compatible endpoint.
    """

    answer: Callable[[str], str]

    def compare(self, own: Sequence[Dialogue], others: Sequence[Dialogue]) -> Judgement:
        """One's own dialogues against others to the same questions, pair by pair.

        The judge is asked twice about a pair, with the two in exchanged places: one that prefers whatever stands first says
        "tie". Source: Zheng et al. 2023 (arXiv:2306.05685), section 3.4.
        """
        wins, pairs, unclear = [], [], []
        for number, (own_answer, other_answer) in enumerate(zip(own, others, strict=True)):
            answers = [self._answer_to(own_answer, other_answer), self._answer_to(other_answer, own_answer)]
            forth, back = map(verdict, answers)
            unclear += [answer for answer in answers if verdict(answer) is None]
            if forth is not None and back is not None:
                wins.append(forth if forth == 1.0 - back else 0.5)
                pairs.append(number)
        example = unclear[0][-200:] if unclear else ""
        return Judgement(wins, pairs, len(unclear), 2 * len(own), example)

    def _answer_to(self, first: Dialogue, second: Dialogue) -> str:
        return self.answer(
            f"{INSTRUCTION}\n\n[The first assistant]\n{first}\n\n[The second assistant]\n{second}"
        )


def verdict(answer: str) -> float | None:
    """What a judge's answer says: 1 for FIRST, 0 for SECOND, 0.5 for TIE; None where it can't be understood.

    Only a line of the verdict alone counts, in capitals or not, in bold or after "Verdict:"; words within a sentence are an
    explanation. None as well for lines that contradict each other.
    """
    verdicts = {match[1].upper() for line in answer.splitlines() if (match := VERDICT_LINE.fullmatch(line))}
    return VERDICTS[verdicts.pop()] if len(verdicts) == 1 else None
