"""Batches of token ids: select rows, pad them, and restore their original order.

B rows, S tokens in the longest row
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass
class TokenBatch:
    """Right-padded rows of token ids. Selecting rows also drops the columns that are padding in all selected rows."""

    tokens: Tensor
    """int64 [B, S]."""
    lengths: Tensor
    """int64 [B], tokens before the padding."""

    @property
    def size(self) -> int:
        """The number of rows, B."""
        return len(self.lengths)

    def rows(self, index: list[int] | Tensor) -> TokenBatch:
        """The rows at `index` of every field, in the order of `index`, cut to the longest selected row.

        index: int64 [B'] or a list of row numbers. `tokens` becomes [B', S'], other 2-D fields [B', S' − 1].
        """
        index = torch.as_tensor(index, dtype=torch.int64)
        width = int(self.lengths[index].max())
        chosen = {}
        for f in fields(self):
            value = getattr(self, f.name)[index]
            cut = width if f.name == "tokens" else width - 1
            chosen[f.name] = value[:, :cut] if value.dim() == 2 else value
        return replace(self, **chosen)

    def to(self, device: torch.device) -> TokenBatch:
        """A copy with every field on the device."""
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def concat_restore_order(batches: list, groups: list[list[int]], fill: int = 0):
    """Concatenate batches of one record type and restore the original order of their rows.

    groups: for each batch, the original numbers of its rows. Narrower batches are padded on the right:
    `tokens` with fill, other 2-D fields with 0.
    """
    joined = {}
    for f in fields(batches[0]):
        parts = [getattr(batch, f.name) for batch in batches]
        joined[f.name] = concat_rows(parts, groups, fill if f.name == "tokens" else 0)
    return replace(batches[0], **joined)


def concat_rows(parts: list[Tensor], groups: list[list[int]], fill: int = 0) -> Tensor:
    """The same as `concat_restore_order` for one tensor of each batch, padded with fill."""
    if parts[0].dim() == 2:
        width = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, width - part.shape[1]), value=fill) for part in parts]
    place = torch.tensor([row for group in groups for row in group]).argsort()
    return torch.cat(parts)[place]


def pad_rows(rows: list[list[int]], fill: int) -> tuple[Tensor, Tensor]:
    """Right-pad rows of token ids: returns tokens int64 [B, S], padded with fill, and lengths int64 [B]."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.full((len(rows), int(lengths.max())), fill)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    return tokens, lengths
