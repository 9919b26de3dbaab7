"""Rows of token ids as one record, cut, padded and put back in order.

B rows, S longest row
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass
class TokenBatch:
    """Right-padded rows of token ids. Selecting rows also cuts the columns that none of them uses."""

    tokens: Tensor  # int64 [B, S]
    lengths: Tensor  # int64 [B], tokens before the padding

    @property
    def size(self) -> int:
        return len(self.lengths)

    def rows(self, index: list[int] | Tensor) -> TokenBatch:
        """These rows, in this order: every field's own."""
        index = torch.as_tensor(index, dtype=torch.int64)
        width = int(self.lengths[index].max())
        chosen = {}
        for f in fields(self):
            value = getattr(self, f.name)[index]
            cut = width if f.name == "tokens" else width - 1
            chosen[f.name] = value[:, :cut] if value.dim() == 2 else value
        return replace(self, **chosen)

    def to(self, device: torch.device) -> TokenBatch:
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def concat_restore_order(batches: list, groups: list[list[int]], fill: int = 0):
    """One record of several of its kind: their rows back in the order that they were dealt in.

    groups: the places of each batch's rows. Narrower batches are padded on the right, tokens with `fill`.
    """
    joined = {}
    for f in fields(batches[0]):
        parts = [getattr(batch, f.name) for batch in batches]
        joined[f.name] = concat_rows(parts, groups, fill if f.name == "tokens" else 0)
    return replace(batches[0], **joined)


def concat_rows(parts: list[Tensor], groups: list[list[int]], fill: int = 0) -> Tensor:
    """As `concat_restore_order`, for one tensor of each batch."""
    if parts[0].dim() == 2:
        width = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, width - part.shape[1]), value=fill) for part in parts]
    place = torch.tensor([row for group in groups for row in group]).argsort()
    return torch.cat(parts)[place]


def pad_rows(rows: list[list[int]], fill: int) -> tuple[Tensor, Tensor]:
    """Ragged rows as (int64 [B, S] right-padded with fill, int64 [B] lengths)."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.full((len(rows), int(lengths.max())), fill)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    return tokens, lengths
