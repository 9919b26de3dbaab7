"""An environment: write a word backwards. A wrong answer gets a second try."""

from aligner_lib.rollouts.environments.base import Environment, Step, hold_out

WORDS = ["bread", "cloud", "house", "light", "river", "stone", "table", "water"]


class Backwards(Environment):
    max_turns = 2

    def __init__(self, split="train", *, held_out=0.25):
        super().__init__(split)
        self.words = hold_out(WORDS, held_out)[split]
        self.size = len(self.words)

    def reset(self, seed):
        self.word, self.tries = self.words[seed % self.size], 0
        return [{"role": "user", "content": f"Write {self.word} backwards."}]

    def step(self, response):
        self.tries += 1
        if response.strip() == self.word[::-1]:
            return Step(reward=1 / self.tries, metrics={"tries": self.tries})
        if self.tries < self.max_turns:
            return Step(done=False, observation="No. Try again.")
        return Step(reward=0.0, metrics={"tries": self.tries})
