"""Policies that are programs: the pay of a tool environment for a policy without any understanding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from aligner_lib.datasets.tool_calls import ToolCall, written_calls
from aligner_lib.rollouts.environments.tools import ToolEnvironment

ScriptedPolicy = Callable[[str, Sequence[str]], str]
"""Takes the last turn of the prompt and the results so far. Returns the next response."""


class Score(NamedTuple):
    """Means over episodes."""

    reward: float
    calls: float
    """Calls in an episode."""


def played(environment: ToolEnvironment, policy: ScriptedPolicy, episodes: int) -> Score:
    """The score of a scripted policy in the first episodes of an environment."""
    steps = [_episode(environment, policy, seed) for seed in range(episodes)]
    return Score(fmean(step.reward for step in steps), fmean(step.metrics["calls"] for step in steps))


def _episode(environment, policy, seed):
    question, results = environment.reset(seed)[-1]["content"], []
    while not (step := environment.step(policy(question, results))).done:
        results += [message["content"] for message in step.observation]
    return step


def call(expression: str) -> str:
    """A response that calls the calculator."""
    return written_calls([ToolCall("calculator", {"expression": expression})])


def always(answer: str) -> ScriptedPolicy:
    """Gives the same answer to every question, without a call."""
    return lambda question, results: answer


def always_calls(expression: str) -> ScriptedPolicy:
    """Makes the same call for every question, and answers with the result."""
    return lambda question, results: results[-1] if results else call(expression)


def combines_numbers(sign: str) -> ScriptedPolicy:
    """Calls with the first two numbers of the question and always the same sign, and answers with the result."""
    return lambda question, results: (
        results[-1] if results else call(f" {sign} ".join(re.findall(r"\d+", question)[:2]))
    )


def most_frequent(answers: Sequence[str]) -> str:
    """The best constant answer to the questions of a list of answers."""
    return Counter(answers).most_common(1)[0][0]
