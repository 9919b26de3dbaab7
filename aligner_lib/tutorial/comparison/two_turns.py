"""A two-turn evaluation: questions whose second turn builds on the first answer, and a judge that compares two dialogues.

The questions (`data/samples/two-turn-questions.jsonl`) were written for this project and have the format of MT-Bench (Zheng et
al. 2023, arXiv:2306.05685).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from aligner_lib.jobs.drawn_answer import answers_of
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
    """A question with two turns."""

    category: str
    turns: tuple[str, str]


@dataclass(frozen=True)
class Dialogue:
    """A question with two turns, and a policy's answers to both turns."""

    question: TwoTurns
    answers: tuple[str, str]

    @property
    def prompt(self) -> str:
        """The prompt of the second answer: the conversation up to the second turn."""
        first, second = self.question.turns
        return f"User: {first}\n\nAssistant: {self.answers[0]}\n\nUser: {second}\n\nAssistant:"

    def __str__(self) -> str:
        return f"{self.prompt} {self.answers[1]}"


def two_turn_questions(count: int | None = None) -> list[TwoTurns]:
    """The first `count` questions, taken from the categories in turn. None: all questions."""
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
    """Ask a policy the first turns of all questions, then the second turns, and print a line after each of the two.

    answer: a function of a conversation, made by `jobs.inference.answering`.
    """
    first_answers = answers_of(answer, [f"User: {question.turns[0]}\n\nAssistant:" for question in questions])
    count = len(questions)
    print(f"the first turns of {count} question{'' if count == 1 else 's'} are answered", flush=True)
    unanswered = [Dialogue(question, (first, "")) for question, first in zip(questions, first_answers)]
    second_answers = answers_of(answer, [dialogue.prompt for dialogue in unanswered])
    print("the second turns are answered", flush=True)
    return [Dialogue(*both) for both in zip(questions, zip(first_answers, second_answers))]


@dataclass(frozen=True)
class Judgement:
    """A judge's verdicts on pairs of dialogues: a policy's own dialogue and another dialogue.

    A pair counts only if both of the judge's answers have a verdict.
    """

    wins: list[float]
    """For each pair that counts: 1 if the own dialogue wins, 0 if the other dialogue wins, 0.5 for a tie."""
    pairs: list[int]
    """The numbers of the pairs that count."""
    not_understood: int
    """Answers of the judge without a verdict."""
    verdicts: int
    """All answers of the judge: two for each pair."""
    example: str = ""
    """The end of an answer without a verdict."""

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
    """A language model that decides which of two dialogues ends with the better answer."""

    answer: Callable[[str], str]
    """Maps a text to the model's answer. For a model behind an OpenAI-compatible endpoint:
    `jobs.served.answering_at(URL, token, model=…, temperature=0)`."""

    def compare(self, own: Sequence[Dialogue], others: Sequence[Dialogue]) -> Judgement:
        """Compare a policy's own dialogues with other dialogues on the same questions, pair by pair.

        The judge sees each pair twice, in both orders. If the two verdicts contradict each other, the pair is a tie. A judge
        that always prefers the first dialogue therefore produces only ties.
        Source: Zheng et al. 2023 (arXiv:2306.05685), section 3.4.
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
    """The verdict in a judge's answer: 1 for FIRST, 0 for SECOND, 0.5 for TIE; None without a verdict.

    Only a line that contains nothing but the verdict counts, in upper or lower case, in bold or after "Verdict:". The same
    words within a sentence are part of the explanation. None also if the answer contains contradicting verdicts.
    """
    verdicts = {match[1].upper() for line in answer.splitlines() if (match := VERDICT_LINE.fullmatch(line))}
    return VERDICTS[verdicts.pop()] if len(verdicts) == 1 else None
