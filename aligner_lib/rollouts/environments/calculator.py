"""Sums and products for which the policy may use a calculator: a tool that it calls within its response."""

from __future__ import annotations

import ast
import operator
import re
from random import Random

from aligner_lib.rollouts.environments.answers import last_number, number
from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require

CALL = re.compile(r"<calc>(.*?)</calc>", re.DOTALL)
LONGEST = 100  # characters of an expression
LARGEST = 10**15  # limit for results and intermediate results
MOST_PROBLEMS = 30_000  # of an environment
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class Calculator(Environment):
    """Problems a + b, a - b or a * b, for numbers with `digits` digits. A response may call `<calc>a * b</calc>`.

    The observation is then the calculator's result or an error, and the environment ignores all text after the call. A response
    without a call is the answer, with the reward 1 if its last number is the result. Every prompt begins with `examples` worked
    examples from the training split, each with a call. The share `held_out` of all problems is for validation; 3 + 4 and 4 + 3
    are always in the same split. If there are more than MOST_PROBLEMS, as many are drawn, the same ones in every run.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        digits: int = 2,
        operations: str = "+-*",
        examples: int = 1,
        turns: int = 3,
        held_out: float = 0.2,
    ):
        super().__init__(split)
        require(1 <= digits <= 6, f"digits={digits}: the value must be 1 to 6")
        require(
            bool(operations) and set(operations) <= set("+-*"),
            f"operations={operations!r}: the value must be some of + - *",
        )
        require(turns >= 1, f"turns={turns}: the value must be at least 1")
        problems = _problems("".join(dict.fromkeys(operations)), range(10 ** (digits - 1), 10**digits))
        splits = hold_out(problems, held_out, twins=_numbers_and_sign)
        self.problems, self.known = splits[split], splits["train"]
        self.size, self.max_turns = len(self.problems), turns
        require(
            0 <= examples < len(self.known),
            f"examples={examples}: the value must be 0 to {len(self.known) - 1}",
        )
        self.examples = examples

    def reset(self, seed: int) -> list[Message]:
        self.expression, self.calls = self.problems[seed % self.size], 0
        instruction = (
            "You have a calculator. To use it, write <calc>expression</calc>; I will tell you what it shows. "
            "Then answer with the number."
        )
        turns = [{"role": "system", "content": instruction}]
        for example in self._worked(seed):
            result = shown(calculate(example))
            texts = [f"What is {example}?", f"<calc>{example}</calc>", result, result]
            turns += [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, texts)]
        return [*turns, {"role": "user", "content": f"What is {self.expression}?"}]

    def step(self, response: str) -> Step:
        if call := CALL.search(response):
            self.calls += 1
            if self.calls < self.max_turns:
                try:
                    observation = shown(calculate(call[1]))
                except ValueError as error:
                    observation = f"error: {error}"
                return Step(done=False, observation=observation)
        right = float(not call and self._is_right(response))
        return Step(right, metrics={"right": right, "calls": self.calls})

    def _worked(self, seed: int) -> list[str]:
        """The problems of an episode's worked examples."""
        drawn = Random(seed).sample(self.known, self.examples + 1)
        return [other for other in drawn if other != self.expression][: self.examples]

    def _is_right(self, answer: str) -> bool:
        final = last_number(answer)
        return final is not None and number(final) == calculate(self.expression)


def _problems(signs: str, numbers: range) -> list[str]:
    """All problems of two numbers, or MOST_PROBLEMS of them, always the same."""
    count = len(signs) * len(numbers) ** 2
    chosen = range(count) if count <= MOST_PROBLEMS else Random(1234).sample(range(count), MOST_PROBLEMS)
    pairs = [(divmod(place, len(numbers) ** 2)) for place in chosen]
    return [
        f"{numbers[pair // len(numbers)]} {signs[sign]} {numbers[pair % len(numbers)]}"
        for sign, pair in pairs
    ]


def _numbers_and_sign(problem: str) -> tuple[str, ...]:
    """The same for 3 + 4 and 4 + 3, and not for 3 - 4 and 4 - 3."""
    a, sign, b = problem.split(" ")
    return (a, sign, b) if sign == "-" else (sign, *sorted((a, b)))


def calculate(expression: str) -> int | float:
    """The value of an expression of numbers, brackets and + - * / // % **.

    Raises ValueError, in words for the policy, for any other expression and for numbers beyond LARGEST. No code is run.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("can't read that") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("too large") from None


def shown(value: float) -> str:
    """A number as the calculator shows it, with at most ten digits unless it is an integer."""
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _within_bounds(value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            a, b = _value(left), _value(right)
            if isinstance(sign, ast.Pow) and abs(b) > 64:  # checked before the power is computed
                raise ValueError("too large")
            return _within_bounds(OPERATORS[type(sign)](a, b))
    raise ValueError("numbers, brackets and + - * / // % ** only")


def _within_bounds(value: complex) -> int | float:
    if isinstance(value, complex):
        raise ValueError("no real number")
    if not abs(value) <= LARGEST:  # nan too
        raise ValueError("too large")
    return value
