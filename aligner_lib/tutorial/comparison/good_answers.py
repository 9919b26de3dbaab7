"""A program's judgement of a run's answers: which answers are good, and which parts of the judgement hold."""

from __future__ import annotations

from statistics import fmean

from aligner_lib.run_folder.turns import turns_of
from aligner_lib.tutorial.comparison.statistics import Estimate, share
from data.forms import instruction_in
from data.gold import GoldParts, judge_all

PARTS = ("own_words", "on_topic", "varied", "readable", "plain", "specific")
"""Fields of GoldParts. Tables have separate rows for `obeys` and `ended`."""


def judged(records: list[dict]) -> list[GoldParts] | None:
    """A program's judgement of each answer, in comparison with the other answers of the same policy.

    records: of rollouts.jsonl. The records of policies of several training seeds have the key `seed`. None if a prompt has no
    instruction that a program can check.
    """
    turns = [turns_of(record.get("prompt", ""))[-1]["text"] for record in records]
    if any(instruction_in(turn) is None for turn in turns):
        return None
    verdicts: list[GoldParts | None] = [None] * len(records)
    for seed in {record.get("seed") for record in records}:
        own = [at for at, record in enumerate(records) if record.get("seed") == seed]
        answers, ends = ([records[at][key] for at in own] for key in ("response", "finished"))
        for at, parts in zip(own, judge_all([turns[at] for at in own], answers, ends)):
            verdicts[at] = parts
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
    parts = {name: fmean(float(getattr(verdict, name)) for verdict in verdicts) for name in PARTS}
    return {"good": share([float(verdict.good) for verdict in verdicts], prompts)} | parts
