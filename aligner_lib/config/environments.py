"""The settings of an environment, for every kind of job with rollouts: `model.environments: {NAME: {use: …}}`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from aligner_lib.config.schema import Bound, above, at_least, setting

REWARD_MODEL = "reward_model"
"""The environment whose responses a reward model judges, and the name of the model's score among `rewards`."""
WEIGHTS = Bound(
    lambda weights: (
        not weights
        or (all(map(math.isfinite, weights.values())) and any(weights.values()) and "reward" not in weights)
    ),
    "names of metrics with finite weights, not all 0; `reward` is the name of their weighted sum",
)


@dataclass
class EnvironmentSettings:
    """model.environments.NAME: an environment, which provides prompts and scores responses."""

    use: str = ""
    """sums, form_rules, instructions, calculator, tool_calculator, search, guess_the_number, answers, reasoning_gym, verifiers,
    reward_model, judge, or FILE.py; empty: the environment's name."""
    weight: float = setting(1.0, at_least(0))
    """The environment's share of the prompts, relative to the other weights."""
    rewards: dict[str, float] = setting({}, WEIGHTS)
    """Metrics of the environment with their weights: the reward is their weighted sum. {}: the environment's own reward."""
    timeout: float = setting(10.0, above(0))
    """Seconds to wait for the environment's answer; a sample that takes longer is left out."""
    processes: int = setting(2, at_least(1))
    """Processes of the environment on each rank; also the largest number of simultaneous requests."""
    args: dict[str, Any] = setting({})
    """The environment's arguments; see docs/environments.md."""
