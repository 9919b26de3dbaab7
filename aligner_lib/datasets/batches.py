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


SHARED = 0.5
"""Two rows are alike if they begin with the same tokens, for at least this share of the shorter row."""


def alike_grouped(batch: TokenBatch, micro_batch_size: int) -> list[list[int]]:
    """Micro batches of alike rows, such as the responses to one prompt, so that a common prefix is computed once.

    Returns lists of at most micro_batch_size row numbers. Sets of alike rows are ordered by their longest rows, the longest
    first. If no rows are alike, the result is micro batches of similar length, as from `length_grouped`.
    """
    rows, lengths = batch.tokens.cpu().numpy(), batch.lengths.tolist()
    order = sorted(range(batch.size), key=lambda row: rows[row, : lengths[row]].tolist())
    alike: list[list[int]] = []
    for row in order:
        if not alike or _common(rows, lengths, alike[-1][-1], row) < SHARED:
            alike.append([])
        alike[-1].append(row)
    for same in alike:
        same.sort(key=lambda row: (-lengths[row], row))
    alike.sort(key=lambda same: (-lengths[same[0]], same[0]))
    flat = [row for same in alike for row in same]
    return [flat[i : i + micro_batch_size] for i in range(0, len(flat), micro_batch_size)]


def _common(rows, lengths: list[int], first: int, second: int) -> float:
    """The length of two rows' common prefix, as a share of the shorter row's tokens."""
    shorter = min(lengths[first], lengths[second])
    differ = (rows[first, :shorter] != rows[second, :shorter]).nonzero()[0]
    return (int(differ[0]) if len(differ) else shorter) / shorter


def concat_restore_order(batches: list, groups: list[list[int]], fill: int = 0):
    """Concatenate batches of the same type and restore the original order of their rows.

    groups: for each batch, the original numbers of its rows. Narrower batches are padded on the right:
    `tokens` with fill, other 2-D fields with 0.
    """
    joined = {}
    for f in fields(batches[0]):
        parts = [getattr(batch, f.name) for batch in batches]
        joined[f.name] = concat_rows(parts, groups, fill if f.name == "tokens" else 0)
    return replace(batches[0], **joined)


def concat_rows(parts: list[Tensor], groups: list[list[int]], fill: int = 0) -> Tensor:
    """As `concat_restore_order`, for a single tensor of each batch, padded with fill."""
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
