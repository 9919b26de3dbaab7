"""The rewards of the run's environments, which Aligner Lab computes: this file needs the package aligner-lab."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from aligner_lib.rollouts.environments.base import Environment, NoVerdict
from aligner_lib.rollouts.environments.registry import make

FOLDER = Path(__file__).resolve().parent


@cache
def environment_of(name: str, split: str) -> Environment:
    """The environment of a name in environments.json."""
    settings = json.loads((FOLDER / "environments.json").read_text(encoding="utf-8"))[name]
    return make(_here(settings["use"]), split, **_here(settings["args"]))


def judge(names: list[str], splits: list[str], seeds: list[int], responses: list[str]) -> list[float | None]:
    """The reward of each response; None for a response without a verdict."""
    rewards: list[float | None] = [None] * len(responses)
    for name, split in dict.fromkeys(zip(names, splits, strict=True)):
        rows = [i for i in range(len(responses)) if (names[i], splits[i]) == (name, split)]
        environment = environment_of(name, split)
        if environment.judges_together:
            steps = environment.step_all([seeds[i] for i in rows], [responses[i] for i in rows])
        else:
            steps = []
            for i in rows:
                environment.reset(seeds[i])
                steps.append(environment.step(responses[i]))
        for i, step in zip(rows, steps, strict=True):
            rewards[i] = None if isinstance(step, NoVerdict) else float(step.reward)
    return rewards


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict) -> float:
    """verl's reward function. A response without a verdict raises ValueError, because verl needs a number."""
    (reward,) = judge([data_source], [extra_info["split"]], [extra_info["seed"]], [solution_str])
    if reward is None:
        raise ValueError(
            f"environment {data_source}, seed {extra_info['seed']}: no verdict on {solution_str!r}"
        )
    return reward


def _here(value):
    """Arguments with the paths of the files in environments/."""
    if isinstance(value, dict):
        return {key: _here(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_here(inner) for inner in value]
    if isinstance(value, str) and value.startswith("environments/"):
        return str(FOLDER / value)
    return value
