"""A program's judgement of a run's answers: which answers are good, and which parts of the judgement hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial.comparison.statistics import Estimate, share
from data.forms import instruction_in
from data.gold import GoldParts, judge_all

PARTS = tuple(name for name in GoldParts._fields if name not in ("obeys", "ended"))
"""The parts that a table lists together. `obeys` and `ended` have rows of their own."""


def judged(records: list[dict]) -> list[GoldParts] | None:
    """A program's judgement of each answer, in comparison with the other answers of the same policy.

    records: of rollouts.jsonl. The records of policies of several training seeds have the key `seed`. None if a prompt has no
    instruction that a program can check.
    """
    turns = [last_turn(record.get("prompt", "")) for record in records]
    if any(instruction_in(turn) is None for turn in turns):
        return None
    verdicts: list[GoldParts | None] = [None] * len(records)
    for seed in {record.get("seed") for record in records}:
        own = [at for at, record in enumerate(records) if record.get("seed") == seed]
        answers, ends = ([records[at][key] for at in own] for key in ("response", "finished"))
        for at, parts in zip(own, judge_all([turns[at] for at in own], answers, ends)):
            verdicts[at] = parts
    return verdicts


def verdicts_of(records: list[dict]) -> list[GoldParts]:
    """Like `judged`. Raises ValueError for a prompt without an instruction that a program can check."""
    verdicts = judged(records)
    if verdicts is None:
        turns = (last_turn(record["prompt"]) for record in records)
        missing = next(turn for turn in turns if instruction_in(turn) is None)
        raise ValueError(f"no instruction of data/forms.py is in this prompt: {missing!r}")
    return verdicts


def good_answers(records: list[dict]) -> list[float] | None:
    """1.0 for each good answer, and 0.0 for each other answer; None if a prompt has no instruction that a program can check."""
    verdicts = judged(records)
    return None if verdicts is None else [float(parts.good) for parts in verdicts]


def good_and_parts(records: list[dict], prompts: list) -> dict[str, Estimate | float]:
    """The share of good answers, and the share of answers for which each field of GoldParts except `obeys` and `ended` holds.

    Empty if a prompt has no instruction that a program can check.
    """
    verdicts = judged(records)
    if verdicts is None:
        return {}
    return {"good": share([float(verdict.good) for verdict in verdicts], prompts)} | mean_parts(verdicts)


def mean_parts(verdicts: Sequence[GoldParts], names: Iterable[str] = PARTS) -> dict[str, float]:
    """By the name of a part: the share of answers for which the part holds."""
    return {name: fmean(float(getattr(verdict, name)) for verdict in verdicts) for name in names}


def first_and_last(records: Iterable[dict]) -> dict[int, list[dict]]:
    """The records of the first and of the last step, by step. There may be a single step, or none."""
    by_step = defaultdict(list)
    for record in records:
        by_step[record["step"]].append(record)
    return {step: by_step[step] for step in (min(by_step), max(by_step))} if by_step else {}
