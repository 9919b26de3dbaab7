"""Rows without their padding: every layer computes real tokens only, and attention alone sees padded rows.

B rows, S tokens in the longest, T real tokens of all rows (rounded up where ranks share them evenly)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from aligner_lib.megatron import cpu

cpu.prepare()

from megatron.core.packed_seq_params import PackedSeqParams


class Unpadding(PackedSeqParams):
    """Where the real tokens of right-padded rows are; Megatron's layers pass it to the attention."""

    def __init__(self, lengths: Tensor, width: int, multiple: int = 1):
        """lengths: int64 [B]; width: S; multiple: tokens of 0 are added until T is one of it."""
        super().__init__(max_seqlen_q=width, max_seqlen_kv=width)
        real = torch.arange(width, device=lengths.device) < lengths[:, None]
        self.places = real.flatten().nonzero().squeeze(1)  # int64 [real tokens] in the flattened rows
        self.added = -len(self.places) % multiple
        self.columns = pad(
            self.places % width, (0, self.added)
        )  # int64 [T]: each token's position in its row
        self.shape = real.shape

    def remove(self, rows: Tensor) -> Tensor:
        """Drop padding: [B, S, ...] → [T, ...]."""
        tokens = rows.flatten(0, 1).index_select(0, self.places)
        return torch.cat([tokens, tokens.new_zeros(self.added, *tokens.shape[1:])]) if self.added else tokens

    def restore(self, tokens: Tensor) -> Tensor:
        """Add padding again: [T, ...] → [B, S, ...], zero at padding."""
        rows = tokens.new_zeros(self.shape.numel(), *tokens.shape[1:])
        return rows.index_copy(0, self.places, tokens[: len(self.places)]).unflatten(0, self.shape)
