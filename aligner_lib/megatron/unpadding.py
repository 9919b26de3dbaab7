"""Rows without their padding: every layer computes real tokens only, and attention alone sees padded rows.

B rows, S tokens in the longest, T real tokens of all rows
"""

from __future__ import annotations

import torch
from torch import Tensor

from aligner_lib.megatron import cpu

cpu.prepare()

from megatron.core.packed_seq_params import PackedSeqParams


class Unpadding(PackedSeqParams):
    """Where the real tokens of right-padded rows are; Megatron's layers pass it to the attention."""

    def __init__(self, lengths: Tensor, width: int):
        """lengths: int64 [B]; width: S."""
        super().__init__(max_seqlen_q=width, max_seqlen_kv=width)
        real = torch.arange(width, device=lengths.device) < lengths[:, None]
        self.places = real.flatten().nonzero().squeeze(1)  # int64 [T] in the flattened rows
        self.columns = self.places % width  # int64 [T]: each token's position in its row
        self.shape = real.shape

    def remove(self, rows: Tensor) -> Tensor:
        """Drop padding: [B, S, ...] → [T, ...]."""
        return rows.flatten(0, 1).index_select(0, self.places)

    def restore(self, tokens: Tensor) -> Tensor:
        """Add padding again: [T, ...] → [B, S, ...], zero at padding."""
        rows = tokens.new_zeros(self.shape.numel(), *tokens.shape[1:])
        return rows.index_copy(0, self.places, tokens).unflatten(0, self.shape)
