"""The settings of an environment, for every kind of job with rollouts: `model.environments: {NAME: {use: …}}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aligner_lib.config.schema import above, at_least, setting


@dataclass
class EnvironmentSettings:
    """model.environments.NAME: an environment, which provides prompts and scores responses."""

    use: str = ""
    """sums, form_rules, instructions, calculator, guess_the_number, answers, reasoning_gym, verifiers, reward_model, judge, or
    FILE.py; empty: the environment's name."""
    weight: float = setting(1.0, at_least(0))
    """The environment's share of the prompts, relative to the other weights."""
    timeout: float = setting(10.0, above(0))
    """Seconds to wait for the environment's answer; a sample that takes longer is left out."""
    processes: int = setting(2, at_least(1))
    """Processes of the environment on each rank; also the largest number of simultaneous requests."""
    args: dict[str, Any] = setting({})
    """The environment's arguments; see docs/environments.md."""
