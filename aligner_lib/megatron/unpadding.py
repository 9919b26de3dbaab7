"""Rows without their padding, and without prefixes that also occur in an earlier row.

Every layer computes each real token once, and only attention sees padded rows. Under a causal mask, a token's hidden state
depends only on the tokens up to its position. Therefore a common prefix of several rows, such as the prompt of a pair or of a
group, has the same hidden states in each row. The prefix is computed in the first of these rows, and its gradients are summed
there.

B rows, S tokens in the longest row, T computed tokens (rounded up if ranks share them evenly)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from aligner_lib.megatron import cpu

cpu.prepare()

from megatron.core.packed_seq_params import PackedSeqParams


class Unpadding(PackedSeqParams):
    """The places of the computed tokens in right-padded rows. Megatron's layers pass this object to the attention."""

    def __init__(self, lengths: Tensor, width: int, shared: Tensor | None = None, multiple: int = 1):
        """lengths: int64 [B]; width: S; shared: the rows' tokens, int64 [B, S], or None if each row computes its own prefix;
        multiple: zero tokens are added until T is a multiple of this number."""
        super().__init__(max_seqlen_q=width, max_seqlen_kv=width)
        real = torch.arange(width, device=lengths.device) < lengths[:, None]  # [B, S]
        computed, self.sources = real, None
        if shared is not None:
            first = _first_rows(shared, real)
            computed = real & (first == torch.arange(len(lengths), device=lengths.device)[:, None])
            if not torch.equal(computed, real):
                number = (computed.flatten().cumsum(0) - 1).view(real.shape)  # index of each computed token
                self.sources = number.gather(0, first)[real]  # int64: the computed token for each real token
        self.places = computed.flatten().nonzero().squeeze(1)  # int64 [computed tokens] in the flattened rows
        self.real_places = self.places if self.sources is None else real.flatten().nonzero().squeeze(1)
        self.added = -len(self.places) % multiple
        # int64 [T]: each token's position in its row
        self.columns = pad(self.places % width, (0, self.added))
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
    """The first row with the same tokens up to and including each token: int64 [B, S]; real: bool [B, S]."""
    both_real = real[:, None] & real[None]
    # [B, B, S], 1 as far as two rows agree
    common = ((tokens[:, None] == tokens[None]) & both_real).cumprod(dim=2)
    return common.argmax(dim=1)
