"""Sums: the smallest task that a small model fails and can learn within minutes."""

from __future__ import annotations

from random import Random

from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require


class Sums(Environment):
    """a + b with both from `low` to `high`, by default the numbers of `digits` digits, and 0 with one digit.

    Every sum is enumerated; `held_out` of them are the validation split's. `examples` worked ones, of the training split,
    come first, as turns or, with as_turns=False, in one text; `question` and `answer` are how a sum and its result are
    written, `instruction` is the system's turn. The reward is 1 for the answer as it is written in the examples: white
    space around it and one full stop behind it are let pass, anything else is not.
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
        require(digits >= 1, f"digits={digits}: it must be at least 1")
        low = (0 if digits == 1 else 10 ** (digits - 1)) if low is None else low
        high = 10**digits - 1 if high is None else high
        require(low <= high, f"low={low} is above high={high}")
        require(
            (high - low + 1) ** 2 <= 4_000_000,
            f"{low} to {high}: over four million sums; set low and high closer",
        )
        for text, name, fields in ((question, "question", "ab"), (answer, "answer", ["sum"])):
            missing = [field for field in fields if f"{{{field}}}" not in text]
            require(not missing, f"{name}={text!r}: it needs {{{'}, {'.join(missing)}}}")
        sums = [(a, b) for a in range(low, high + 1) for b in range(low, high + 1)]
        self.sums = hold_out(sums, split, held_out)
        self.size = len(self.sums)
        known = hold_out(sums, "train", held_out)
        require(0 <= examples < len(known), f"examples={examples}: it must be from 0 to {len(known) - 1}")
        self.known, self.examples = known, examples
        self.instruction, self.question, self.answer, self.as_turns = instruction, question, answer, as_turns

    def reset(self, seed: int) -> list[Message]:
        self.sum = self.sums[seed % self.size]
        others = Random(seed).sample(self.known, self.examples + 1)
        examples = [one for one in others if one != self.sum][: self.examples]
        turns = [(self._asked(one), self._answered(one)) for one in examples]
        system = [{"role": "system", "content": self.instruction}] if self.instruction else []
        if not self.as_turns:
            worked = [f"{question} {answer}" for question, answer in turns]
            return [*system, {"role": "user", "content": "\n".join([*worked, self._asked(self.sum)])}]
        shown = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in zip(("user", "assistant"), turn)
        ]
        return [*system, *shown, {"role": "user", "content": self._asked(self.sum)}]

    def step(self, response: str) -> Step:
        given = response.strip()
        right = self._answered(self.sum)
        exact = float(given in (right, f"{right}."))
        return Step(exact, metrics={"exact": exact})

    def _asked(self, numbers: tuple[int, int]) -> str:
        return self.question.format(a=numbers[0], b=numbers[1])

    def _answered(self, numbers: tuple[int, int]) -> str:
        return self.answer.format(sum=sum(numbers))
