"""Passes through a model that can be repeated barely: the model and its loss, without schedule, optimiser, copies and records.

B rows, S sequence, H hidden
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.megatron import cpu

MOST_TOKENS = (
    8192  # in one forward pass over generated tokens, whose activations have to fit beside the models
)


@dataclass(frozen=True)
class MicroBatchPass:
    """A pass over given micro batches."""

    module: torch.nn.Module
    micro_batches: Sequence[TokenBatch]
    loss: Callable[[TokenBatch, Tensor], Any]
    """(batch, hidden [S, B, H]) → a tuple that begins with the loss if the pass trains, else any result."""
    trains: bool
    """Whether a backward pass follows the forward pass of each micro batch."""

    @property
    def tokens(self) -> int:
        """The tokens of the micro batches, without padding."""
        return sum(int(batch.lengths.sum()) for batch in self.micro_batches)

    def repeat(self) -> None:
        """Compute the same micro batches again. Gradients are added to those that are there."""
        self.module.train(self.trains)
        with torch.set_grad_enabled(self.trains):
            for batch in self.micro_batches:
                here = batch.to(cpu.DEVICE)
                result = self.loss(here, self.module(here.tokens, here.lengths))
                if self.trains:
                    result[0].backward()


@dataclass
class GenerationPass:
    """What a model read and drew while it generated token by token. The repetition reads all tokens in whole rows instead."""

    module: torch.nn.Module
    tokens: int = 0
    """All tokens that the model read, with those of rows that were over or padded."""
    drawn: int = 0
    """Tokens that were drawn, each from logits of its own."""
    rows: int = 0
    """The most rows of a single read."""
    context: int = 0
    """The most columns that a read saw, with those in the cache."""

    def read(self, tokens: Tensor, context: int) -> None:
        """Count a read. tokens: int64 [B, S]; context: the columns with those in the cache."""
        self.tokens += tokens.numel()
        self.rows, self.context = max(self.rows, len(tokens)), max(self.context, context)

    def repeat(self) -> None:
        """One forward pass over as many tokens of random ids, and the logits of as many positions as were drawn."""
        architecture = self.module.architecture
        width = min(self.context, architecture.max_position_embeddings)
        rows = max(1, min(self.rows, MOST_TOKENS // width))
        left, undrawn = self.tokens, self.drawn
        self.module.eval()
        with torch.inference_mode():
            while left:
                size = min(width, left)
                count = min(rows, left // size)
                tokens = torch.randint(architecture.vocab_size, (count, size), device=cpu.DEVICE)
                lengths = torch.full((count,), size, device=cpu.DEVICE)
                hidden = self.module(tokens, lengths).flatten(0, 1)
                # as many positions at a time as the generation had: the logits of all at once may not fit into memory
                for part in hidden[:undrawn].split(self.rows) if undrawn else ():
                    self.module.logits(part)
                left, undrawn = left - tokens.numel(), max(undrawn - len(hidden), 0)
