"""Guess a number in a few turns: the smallest game in which a response depends on the previous turns."""

from __future__ import annotations

from aligner_lib.rollouts.environments.answers import last_number, number
from aligner_lib.rollouts.environments.base import Environment, Message, Step, hold_out, require


class GuessTheNumber(Environment):
    """The policy has `turns` guesses for a number from `low` to `high`. After each wrong guess, the policy reads whether the
    number is higher or lower.

    The reward for the right guess in turn t is 1 - (t - 1) / turns; without a right guess the reward is 0. The share `held_out`
    of the numbers is for validation. A guess is the last number of a response; a response without a number loses a turn.
    """

    def __init__(
        self, split: str = "train", *, low: int = 1, high: int = 20, turns: int = 6, held_out: float = 0.3
    ):
        super().__init__(split)
        require(low < high, f"low={low} is not below high={high}")
        require(turns >= 1, f"turns={turns}: the value must be at least 1")
        self.low, self.high, self.max_turns = low, high, turns
        self.numbers = hold_out(range(low, high + 1), held_out)[split]
        self.size = len(self.numbers)

    def reset(self, seed: int) -> list[Message]:
        self.number, self.guesses = self.numbers[seed % self.size], 0
        instruction = (
            f"I have a whole number from {self.low} to {self.high} in mind. Guess it: answer with a number, "
            "and I will tell you whether mine is higher or lower."
        )
        return [{"role": "user", "content": instruction}]

    def step(self, response: str) -> Step:
        self.guesses += 1
        shown = last_number(response)
        guess = None if shown is None else number(shown)
        if guess == self.number:
            reward = 1 - (self.guesses - 1) / self.max_turns
            return Step(reward, metrics={"found": 1.0, "guesses": self.guesses})
        if self.guesses == self.max_turns:
            return Step(0.0, metrics={"found": 0.0, "guesses": self.guesses})
        if guess is None:
            return Step(done=False, observation="That is no number. Answer with a number.")
        higher = "higher" if self.number > guess else "lower"
        return Step(done=False, observation=f"My number is {higher} than {shown}.")
