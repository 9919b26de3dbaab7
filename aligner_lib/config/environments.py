"""Settings of one environment, for every kind of job with rollouts: `model.environments: {NAME: {use: …}}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aligner_lib.config.schema import above, at_least, setting


@dataclass
class EnvironmentSettings:
    """model.environments.NAME: what gives prompts and judges responses."""

    # sums, form_rules, instructions, calculator, guess_the_number, answers, reasoning_gym, verifiers, reward_model, or
    # FILE.py; empty: what it is named
    use: str = ""
    weight: float = setting(1.0, at_least(0))  # its share of the prompts, beside the others' weights
    timeout: float = setting(10.0, above(0))  # seconds for one answer; a sample that takes longer is left out
    processes: int = setting(
        2, at_least(1)
    )  # of its own, in each rank; as many requests are under way at most
    args: dict[str, Any] = setting({})  # of the environment; docs/environments.md has them
