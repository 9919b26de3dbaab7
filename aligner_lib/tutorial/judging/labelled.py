"""Forty answers for a reader to label, forty pairs for a judge to compare, and the labels of this project's reader."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from aligner_lib.run_folder.turns import turns_of
from data.gold import judge_all
from data.sources import SAMPLES

ANSWERS = 40
PAIRS = 40
SEED = 13
PADDING = " I hope that this answer is helpful, and I am happy to tell you more."
"""A sentence that adds length and no information. A careful judge lowers the score, because nobody asked for the sentence."""


class LabelledAnswer(NamedTuple):
    """An answer of a recorded policy, with the label of a reader who saw neither the policy nor the program's verdict."""

    turn: str
    """The user's turn."""
    answer: str
    finished: bool
    is_good: bool
    """Whether the reader found no part of a good answer missing (data/gold.py)."""


def labelled_answers() -> list[LabelledAnswer]:
    """Twenty good and twenty other answers, drawn from judged-drawn-answers.jsonl, in a random order. Always the same."""
    lines = (SAMPLES / "judged-drawn-answers.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    answers = [LabelledAnswer(r["turn"], r["answer"], r["finished"], not r["missing"]) for r in records]
    draw = random.Random(SEED)
    chosen = [
        answer
        for is_good in (True, False)
        for answer in draw.sample([a for a in answers if a.is_good == is_good], ANSWERS // 2)
    ]
    draw.shuffle(chosen)
    return chosen


def labels_of(answers: Sequence[LabelledAnswer], good_numbers: str) -> list[bool]:
    """The labels of a learner. good_numbers: the numbers of the good answers from 1, such as "1, 4, 9", or "none"; "": the
    reader's labels.

    Raises ValueError for another text, and for a number without an answer.
    """
    text = good_numbers.strip()
    if not text:
        return [answer.is_good for answer in answers]
    if text != "none" and not re.fullmatch(r"[,;\s]*\d[\d,;\s]*", text):
        raise ValueError(f"{text!r}: write the numbers of the good answers, such as 1, 4, 9, or none")
    numbers = {int(number) for number in re.findall(r"\d+", text)}
    if unknown := numbers - set(range(1, len(answers) + 1)):
        raise ValueError(
            f"there is no answer {min(unknown)}: the answers have the numbers 1 to {len(answers)}"
        )
    return [number in numbers for number in range(1, len(answers) + 1)]


class AnswerPair(NamedTuple):
    """A better and a worse answer to the same prompt, as the gold program decided."""

    turn: str
    better: str
    worse: str


def held_out_pairs() -> list[AnswerPair]:
    """Pairs drawn from drawn-test.jsonl. Always the same."""
    lines = (SAMPLES / "drawn-test.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = []
    for record in random.Random(SEED).sample([json.loads(line) for line in lines], PAIRS):
        (prompt, better), (_, worse) = (_split(record[side]) for side in ("chosen", "rejected"))
        pairs.append(AnswerPair(prompt, better, worse))
    return pairs


def _split(conversation: str) -> tuple[str, str]:
    *_, user, assistant = turns_of(conversation)
    return user["text"], assistant["text"]


def gold_verdicts(answers: Sequence[LabelledAnswer]) -> list[bool]:
    """The verdicts of the gold program (data/gold.py) on the answers, which are compared with each other."""
    turns, texts, finished, _ = zip(*answers)
    return [parts.good for parts in judge_all(list(turns), list(texts), list(finished))]
