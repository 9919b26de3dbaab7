"""Rows without their padding, and without a prefix that stands in an earlier row: every layer computes each real token
once, and attention alone sees padded rows.

Under a causal mask a token's hidden state depends on the tokens before it alone. So what chosen and rejected answers, or
the responses of a group, have in common at their beginning has the same hidden states in each row: they are computed in
the first one, and their gradients are summed there.

B rows, S tokens in the longest, T tokens that are computed (rounded up where ranks share them evenly)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from aligner_lib.megatron import cpu

cpu.prepare()

from megatron.core.packed_seq_params import PackedSeqParams


class Unpadding(PackedSeqParams):
    """Where the computed tokens of right-padded rows are; Megatron's layers pass it to the attention."""

    def __init__(self, lengths: Tensor, width: int, shared: Tensor | None = None, multiple: int = 1):
        """lengths: int64 [B]; width: S; shared: the rows' tokens, int64 [B, S], or None where each row computes its own
        prefix; multiple: tokens of 0 are added until T is a multiple of it."""
        super().__init__(max_seqlen_q=width, max_seqlen_kv=width)
        real = torch.arange(width, device=lengths.device) < lengths[:, None]  # [B, S]
        computed, self.sources = real, None
        if shared is not None:
            first = _first_rows(shared, real)
            computed = real & (first == torch.arange(len(lengths), device=lengths.device)[:, None])
            if not torch.equal(computed, real):
                number = (computed.flatten().cumsum(0) - 1).view(real.shape)  # of each computed token
                self.sources = number.gather(0, first)[real]  # int64: of every real token
        self.places = computed.flatten().nonzero().squeeze(1)  # int64 [computed tokens] in the flattened rows
        self.real_places = self.places if self.sources is None else real.flatten().nonzero().squeeze(1)
        self.added = -len(self.places) % multiple
        self.columns = pad(self.places % width, (0, self.added))  # int64 [T]: each one's position in its row
        self.shape = real.shape

    def remove(self, rows: Tensor) -> Tensor:
        """Drop padding and repeated prefixes: [B, S, ...] → [T, ...]."""
        tokens = rows.flatten(0, 1).index_select(0, self.places)
        return torch.cat([tokens, tokens.new_zeros(self.added, *tokens.shape[1:])]) if self.added else tokens

    def restore(self, tokens: Tensor) -> Tensor:
        """Add prefixes and padding again: [T, ...] → [B, S, ...], zero at padding."""
        real = tokens[: len(self.places)] if self.sources is None else tokens.index_select(0, self.sources)
        rows = tokens.new_zeros(self.shape.numel(), *tokens.shape[1:])
        return rows.index_copy(0, self.real_places, real).unflatten(0, self.shape)


def _first_rows(tokens: Tensor, real: Tensor) -> Tensor:
    """The first row that has the same tokens up to and with each one: int64 [B, S]; real: bool [B, S]."""
    both_real = real[:, None] & real[None]
    common = ((tokens[:, None] == tokens[None]) & both_real).cumprod(
        dim=2
    )  # [B, B, S], 1 as far as two rows agree
    return common.argmax(dim=1)
