"""The rewards of the run's environments, which Aligner Lab computes: this file needs the package aligner-lab."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import numpy

from aligner_lib.rollouts.environments import tracebacks, worker
from aligner_lib.rollouts.environments.base import Environment, Step
from aligner_lib.rollouts.environments.registry import make
from aligner_lib.rollouts.environments.worker import Problem

FOLDER = Path(__file__).resolve().parent


@cache
def environment_of(name: str, split: str) -> Environment:
    """The environment of a name in environments.json."""
    settings = json.loads((FOLDER / "environments.json").read_text(encoding="utf-8"))[name]
    return make(_here(settings["use"]), split, **_here(settings["args"]))


def judge(names: list[str], splits: list[str], seeds: list[int], responses: list[str]) -> list[float | None]:
    """The reward of each response. A response that the run would leave out gets None, and its reason is printed."""
    rewards: list[float | None] = [None] * len(responses)
    for name, split in dict.fromkeys(zip(names, splits, strict=True)):
        rows = [i for i in range(len(responses)) if (names[i], splits[i]) == (name, split)]
        environment = environment_of(name, split)
        for group in [rows] if environment.judges_together else [[i] for i in rows]:
            answers = _answers(environment, split, [seeds[i] for i in group], [responses[i] for i in group])
            for i, answer in zip(group, answers, strict=True):
                if isinstance(answer, Problem):
                    print(f"environment {name}, seed {seeds[i]}: no reward, {answer.reason}: {answer.text}")
                else:
                    rewards[i] = answer.reward
    return rewards


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict) -> float:
    """verl's reward function. verl needs a number, so a response without a reward gets 0."""
    (reward,) = judge([data_source], [extra_info["split"]], [extra_info["seed"]], [solution_str])
    return 0.0 if reward is None else reward


def _answers(
    environment: Environment, split: str, seeds: list[int], responses: list[str]
) -> list[Step | Problem]:
    """The environment's answers as in the run, where an error costs the responses of the call and nothing else."""
    states = random.getstate(), numpy.random.get_state()
    try:
        if environment.judges_together:
            return worker.judge(environment, split, seeds, responses)
        return [worker.play(environment, split, *seeds, responses)]
    except (Exception, SystemExit) as error:
        return [Problem("raised", tracebacks.of_error(error))] * len(responses)
    finally:  # the environment has seeded the generators, from which the trainer draws, too
        random.setstate(states[0])
        numpy.random.set_state(states[1])


def _here(value):
    """Arguments with the paths of the files in environments/."""
    if isinstance(value, dict):
        return {key: _here(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_here(inner) for inner in value]
    if isinstance(value, str) and value.startswith("environments/"):
        return str(FOLDER / value)
    return value
