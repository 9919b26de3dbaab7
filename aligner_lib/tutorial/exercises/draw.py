"""Random inputs of exercises: seeded, small enough to read, ragged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Draw:
    """A source of random inputs, equal for equal seeds. case: which of an exercise's inputs this is for, from 0."""

    def __init__(self, seed: int, case: int = 0):
        import torch

        self.case = case
        self.random = random.Random(f"{seed}/{case}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """float32 of this shape."""
        import torch

        return scale * torch.randn(shape, generator=self.generator)

    def logprobs(self, *shape: int) -> Tensor:
        """float32 below 0, such as log-probabilities of tokens."""
        return -self.normal(*shape).abs() - 0.05

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 in [low, high)."""
        import torch

        return torch.randint(low, high, shape, generator=self.generator)

    def one_of(self, values: Sequence) -> Any:
        """One of these values."""
        return self.random.choice(values)

    def in_turn(self, values: Sequence) -> Any:
        """These values, one case after another: none is left out by chance."""
        return values[self.case % len(values)]

    def between(self, low: float, high: float) -> float:
        """A number in [low, high] with two digits."""
        return round(self.random.uniform(low, high), 2)

    def lengths(self, rows: int, size: int) -> tuple[Tensor, Tensor]:
        """Prompts and whole texts of a batch, int64 [rows] each, in tokens.

        One text fills all of `size` tokens and one is shorter by two at least; a response has two tokens at least.
        """
        import torch

        longest = self.random.randrange(rows)
        lengths = [self.random.randint(4, size - 2) for _ in range(rows)]
        lengths[longest] = size
        prompts = [self.random.randint(2, length - 2) for length in lengths]
        return torch.tensor(prompts), torch.tensor(lengths)

    def response_mask(self, rows: int, size: int) -> Tensor:
        """bool [rows, size]: responses of one turn, padding behind all but one."""
        from aligner_lib.algorithms.ppo import response_mask

        return response_mask(*self.lengths(rows, size + 1), size)
