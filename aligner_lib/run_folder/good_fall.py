"""Does the fraction of good responses fall while the reward rises? A test that counts responses. Imports no torch.

A step has few responses. The fraction of good responses among 32 varies by 0.08 even with the same policy. The fall is
therefore measured in standard errors (the Mantel-Haenszel test: training and validation are each compared with their own start,
then added).
"""

from __future__ import annotations

import math
from typing import NamedTuple

STEPS = 3
"""Training steps whose responses are added; the alarms judge the same number of records."""
SAME_PROMPT = 0.25
"""The agreement of responses to the same prompt on being good: their intraclass correlation, estimated from eight responses to
each of 192 prompts. The responses of a group therefore count less than the same number of responses to different prompts."""
TRAIN, VALIDATION = "train_rollouts", "val_rollouts"
FIGURES = ("good", "rollout_size", "rewards", "rewards_std")
PROMPTS = "prompts"
"""The number of prompts. If a run does not log it, all responses count as responses to different prompts."""
METRICS = tuple(f"{split}/{name}" for split in (TRAIN, VALIDATION) for name in (*FIGURES, PROMPTS))


class JudgedResponses(NamedTuple):
    """The responses of a step or of a validation."""

    step: int
    good: float
    """The number of good responses."""
    responses: float
    reward: float
    spread: float
    """Standard deviation of the rewards."""
    alike: float
    """The factor by which the variance of `good` exceeds the variance of a count of independent responses."""


class GoodFall(NamedTuple):
    """The change since the start of a run."""

    fall: float
    """Fall of the fraction of good responses."""
    errors: float
    """The fall in standard errors."""
    rise: float
    """Rise of the reward, in standard deviations of the first rewards."""


def good_fall(first: list[dict], recent: list[dict]) -> GoodFall | None:
    """Compare the last STEPS training steps, and a validation among them, with the first step and the first validation.

    first: a run's first records; recent: its last records. None if there are too few records, or the records lack the metrics.
    """
    training = _compared(_judged(first, TRAIN), _judged(recent, TRAIN)[-STEPS:], STEPS)
    # All validations have the same prompts, so two validations are not twice the evidence.
    validation = _compared(_judged(first, VALIDATION), _judged(recent, VALIDATION)[-1:], 1)
    if training is None:
        return None
    surplus = variance = rise = weights = 0.0
    for before, after in [training, validation] if validation else [training]:
        share = (before.good + after.good) / (before.responses + after.responses)
        weight = before.responses * after.responses / (before.responses + after.responses)
        surplus += before.good - share * before.responses  # excess over an unchanged fraction
        variance += share * (1 - share) * weight * before.alike
        rise += weight * (after.reward - before.reward) / before.spread
        weights += weight
    errors = surplus / math.sqrt(variance) if variance > 0 else 0.0
    return GoodFall(surplus / weights, errors, rise / weights)


def good_falls_of(records: list[dict], baseline: int) -> dict[int, GoodFall]:
    """The change at each step of a run. baseline: the number of first records that contain the start."""
    changes = {
        record["step"]: good_fall(records[:baseline], records[max(0, at - STEPS + 1) : at + 1])
        for at, record in enumerate(records)
    }
    return {step: change for step, change in changes.items() if change is not None}


def _judged(records: list[dict], split: str) -> list[JudgedResponses]:
    """The records that have all metrics of a split."""
    judged = []
    for record in records:
        names = {name: f"{split}/{name}" for name in (*FIGURES, PROMPTS)}
        figures = {name: record[metric] for name, metric in names.items() if metric in record}
        figures = {
            name: value for name, value in figures.items() if value is not None and math.isfinite(value)
        }
        if not figures.keys() >= set(FIGURES) or figures["rollout_size"] <= 0:
            continue
        share, responses, reward, spread = (figures[name] for name in FIGURES)
        of_a_prompt = responses / (figures.get(PROMPTS) or responses)
        alike = 1 + max(of_a_prompt - 1, 0.0) * SAME_PROMPT
        judged.append(JudgedResponses(record["step"], share * responses, responses, reward, spread, alike))
    return judged


def _compared(
    first: list[JudgedResponses], recent: list[JudgedResponses], count: int
) -> tuple[JudgedResponses, JudgedResponses] | None:
    """The first record and the sum of the last `count` records.

    None if there are fewer than `count`, or if the first record is among the last records.
    """
    if not first or not first[0].spread > 0 or len(recent) < count or recent[0].step <= first[0].step:
        return None
    responses = sum(each.responses for each in recent)
    reward = sum(each.responses * each.reward for each in recent) / responses
    good = sum(each.good for each in recent)
    return first[0], first[0]._replace(step=recent[-1].step, good=good, responses=responses, reward=reward)
