"""Passes that a step profile can repeat with the model and the loss alone, without schedule, optimizer, copies and records.

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

# limit of one forward pass over generated tokens, because the activations have to fit into memory beside the models
MOST_TOKENS = 8192


@dataclass(frozen=True)
class MicroBatchPass:
    """A pass over given micro batches."""

    module: torch.nn.Module
    micro_batches: Sequence[TokenBatch]
    loss: Callable[[TokenBatch, Tensor], Any]
    """Maps (batch, hidden [S, B, H]) to a tuple whose first element is the loss if the pass trains, otherwise to any result."""
    trains: bool
    """Whether a backward pass follows the forward pass of each micro batch."""

    @property
    def tokens(self) -> int:
        """The tokens of the micro batches, without padding."""
        return sum(int(batch.lengths.sum()) for batch in self.micro_batches)

    def repeat(self) -> None:
        """Compute the same micro batches again. New gradients are added to the existing gradients."""
        self.module.train(self.trains)
        with torch.set_grad_enabled(self.trains):
            for batch in self.micro_batches:
                here = batch.to(cpu.DEVICE)
                result = self.loss(here, self.module(here.tokens, here.lengths))
                if self.trains:
                    result[0].backward()


@dataclass
class GenerationPass:
    """The amount of work of one generation. The repetition reads as many tokens in whole rows instead of token by token."""

    module: torch.nn.Module
    tokens: int = 0
    """All tokens read by the model, including padding and the tokens of finished rows."""
    drawn: int = 0
    """The number of drawn tokens. Each token was drawn from the logits of a different position."""
    rows: int = 0
    """The largest number of rows in one read."""
    context: int = 0
    """The largest number of columns in one read, cached columns included."""

    def read(self, tokens: Tensor, context: int) -> None:
        """Count a read. tokens: int64 [B, S]; context: the number of columns, cached columns included."""
        self.tokens += tokens.numel()
        self.rows, self.context = max(self.rows, len(tokens)), max(self.context, context)

    def repeat(self) -> None:
        """Run the model over as many random tokens, and compute the logits of as many positions as were drawn."""
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
                # as many positions at a time as in the generation, because the logits of all positions may not fit into memory
                for part in hidden[:undrawn].split(self.rows) if undrawn else ():
                    self.module.logits(part)
                left, undrawn = left - tokens.numel(), max(undrawn - len(hidden), 0)
