"""The calculator as a tool: the problems of `calculator`, with calls in the form of the policy's chat template."""

from __future__ import annotations

from typing import Any

from aligner_lib.datasets.tool_calls import ToolCall, calling_message
from aligner_lib.rollouts.environments.base import Message, Step
from aligner_lib.rollouts.environments.calculator import Calculator, calculate, shown
from aligner_lib.rollouts.environments.tools import ToolEnvironment


def calculator(expression: str) -> str:
    """
    Computes an expression.

    Args:
        expression: Numbers, brackets and + - * / // % **
    """
    return shown(calculate(expression))


class ToolCalculator(ToolEnvironment, Calculator):
    """The problems, arguments and reward of `calculator`. The policy calls the function `calculator` in its template's form."""

    tools = (calculator,)

    def prompt(self, seed: int) -> list[Message]:
        self.expression = self.problems[seed % self.size]
        worked = [message for example in self._worked(seed) for message in worked_example(example)]
        return [*worked, {"role": "user", "content": f"What is {self.expression}?"}]

    def judge(self, answer: str) -> Step:
        right = float(self._is_right(answer))
        return Step(right, metrics={"right": right})


def worked_example(problem: str) -> list[dict[str, Any]]:
    """A conversation in which the assistant calls the calculator for a problem, and answers with the result."""
    call = ToolCall(calculator.__name__, {"expression": problem})
    result = calculator(problem)
    return [
        {"role": "user", "content": f"What is {problem}?"},
        calling_message([call]),
        {"role": "tool", "name": call.name, "content": result},
        {"role": "assistant", "content": result},
    ]
