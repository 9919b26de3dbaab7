"""Sums: the smallest task that a small model fails and can learn within minutes."""

from __future__ import annotations

from string import Formatter

from aligner_lib.rollouts.environments.base import MOST, Environment, Message, Step, hold_out, require

Sum = tuple[int, int]


class Sums(Environment):
    """a + b, with a and b from `low` to `high`: by default all numbers of `digits` digits, including 0 for one digit.

    The environment enumerates all sums and holds out the share `held_out` for validation. Twins stay together: if 3 + 4 is held
    out, the policy never trains on 4 + 3. Every prompt begins with `examples` worked sums from neither split, so all prompts share
    a long prefix. The worked sums are turns, or lines of a single turn with as_turns=False. `question` and `answer` are the
    wordings of a sum and of its result, and `instruction` is a system turn. The reward is 1 for the result in the wording of the
    examples, else 0. White space around the result and a single full stop after the result are allowed.
    """

    def __init__(
        self,
        split: str = "train",
        *,
        digits: int = 1,
        low: int | None = None,
        high: int | None = None,
        examples: int = 2,
        held_out: float = 0.3,
        instruction: str = "",
        question: str = "What is {a} + {b}?",
        answer: str = "{sum}",
        as_turns: bool = True,
    ):
        super().__init__(split)
        require(digits >= 1, f"digits={digits}: the value must be at least 1")
        low = (0 if digits == 1 else 10 ** (digits - 1)) if low is None else low
        high = 10**digits - 1 if high is None else high
        require(low <= high, f"low={low} is above high={high}")
        count = (high - low + 1) ** 2
        require(
            count <= MOST, f"{low} to {high} are {count:,} sums: more than {MOST:,}; set low and high closer"
        )
        _require_fields("question", question, "a", "b")
        _require_fields("answer", answer, "sum")
        every = [(a, b) for a in range(low, high + 1) for b in range(low, high + 1)]
        sums = hold_out(every, held_out, twins=lambda numbers: tuple(sorted(numbers)))
        known = sums["train"]
        require(
            0 <= examples < len(known),
            f"examples={examples}: the value must be 0 to {len(known) - 1}, because they are taken from the training split",
        )
        self.examples, self.as_turns = known[:examples], as_turns
        self.sums = known[examples:] if split == "train" else sums[split]
        self.size = len(self.sums)
        self.instruction, self.question, self.answer = instruction, question, answer

    def reset(self, seed: int) -> list[Message]:
        self.sum = self.sums[seed % self.size]
        worked = [(self._question(example), self._result(example)) for example in self.examples]
        if self.as_turns:
            turns = [_turn(*turn) for pair in worked for turn in zip(("user", "assistant"), pair)]
            turns.append(_turn("user", self._question(self.sum)))
        else:
            lines = [*(f"{question} {result}" for question, result in worked), self._question(self.sum)]
            turns = [_turn("user", "\n".join(lines))]
        return [_turn("system", self.instruction), *turns] if self.instruction else turns

    def step(self, response: str) -> Step:
        right = self._result(self.sum).strip()
        exact = float(response.strip() in (right, f"{right}."))
        return Step(exact, metrics={"exact": exact})

    def _question(self, numbers: Sum) -> str:
        return self.question.format(a=numbers[0], b=numbers[1])

    def _result(self, numbers: Sum) -> str:
        return self.answer.format(sum=sum(numbers))


def _turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _require_fields(name: str, text: str, *fields: str) -> None:
    """Raises UserError for a wording that lacks a field, and for braces that are no field."""
    try:
        text.format(**dict.fromkeys(fields, 1))
        used = {field for _, field, _, _ in Formatter().parse(text)}
    except (LookupError, ValueError, AttributeError):
        used = set()
    require(
        used.issuperset(fields),
        f"{name}={text!r}: it must contain {' and '.join(f'{{{field}}}' for field in fields)}; write other braces twice, as in "
        "{{x}}",
    )
