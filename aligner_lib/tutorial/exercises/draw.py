"""Random inputs of exercises: seeded, small enough to read, with rows of different lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Draw:
    """A source of random inputs, equal for equal seeds. case: the number of the input within an exercise, from 0."""

    def __init__(self, seed: int, case: int = 0):
        import torch

        self.case = case
        self.random = random.Random(f"{seed}/{case}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normally distributed numbers, float32 of the given shape."""
        import torch

        return scale * torch.randn(shape, generator=self.generator)

    def logprobs(self, *shape: int) -> Tensor:
        """Random log-probabilities of tokens: float32 below 0."""
        return -self.normal(*shape).abs() - 0.05

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Random integers in [low, high), int64 of the given shape."""
        import torch

        return torch.randint(low, high, shape, generator=self.generator)

    def one_of(self, values: Sequence) -> Any:
        """A random element of `values`."""
        return self.random.choice(values)

    def in_turn(self, values: Sequence) -> Any:
        """An element of `values`, in turn from case to case, so that every element is used."""
        return values[self.case % len(values)]

    def between(self, low: float, high: float) -> float:
        """A random number in [low, high], rounded to two decimal places."""
        return round(self.random.uniform(low, high), 2)

    def lengths(self, rows: int, size: int) -> tuple[Tensor, Tensor]:
        """The lengths of the prompts and of the whole texts of a batch in tokens, int64 [rows] each.

        A random text has exactly `size` tokens, all other texts are shorter by two or more. A response has two or more tokens.
        """
        import torch

        longest = self.random.randrange(rows)
        lengths = [self.random.randint(4, size - 2) for _ in range(rows)]
        lengths[longest] = size
        prompts = [self.random.randint(2, length - 2) for length in lengths]
        return torch.tensor(prompts), torch.tensor(lengths)

    def response_mask(self, rows: int, size: int) -> Tensor:
        """bool [rows, size]: the mask of single-turn responses. All rows except the longest end with padding."""
        from aligner_lib.algorithms.ppo import response_mask

        return response_mask(*self.lengths(rows, size + 1), size)
