"""A tensor in an archive, stored in pieces. Each piece is read when its values are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aligner_lib.models.stream import CARRIERS


@dataclass(frozen=True)
class Piece:
    """A separately stored block of a tensor: a rank's shard, or a layer of a stack."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    """Returns the values, of `shape`, in the carrier's dtype."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in an archive. bfloat16 values are their bits in uint16, as in `aligner_lib.models.stream`."""

    name: str
    """The name in the archive, for messages."""
    dtype: str
    """The dtype in safetensors' spelling."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def read(self) -> np.ndarray:
        """The whole tensor. Raises ValueError as `read_block`."""
        return self.read_block((0,) * len(self.shape), self.shape)

    def read_block(self, offset: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
        """A block of the tensor. Reads the overlapping pieces, one at a time.

        dtype must be a key of CARRIERS. Raises ValueError when pieces are missing or damaged.
        """
        overlaps = [(piece, overlap) for piece in self.pieces if (overlap := _overlap(offset, shape, piece))]
        if len(overlaps) == 1 and (overlaps[0][0].offset, overlaps[0][0].shape) == (offset, shape):
            return overlaps[0][0].read()
        try:
            block, filled = np.zeros(shape, CARRIERS[self.dtype]), 0
        except (MemoryError, ValueError):
            raise ValueError(
                f"{self.name} claims to have shape {list(shape)}, which does not fit into memory"
            ) from None
        for piece, overlap in overlaps:
            into = tuple(slice(start - o, end - o) for (start, end), o in zip(overlap, offset))
            out_of = tuple(slice(start - o, end - o) for (start, end), o in zip(overlap, piece.offset))
            block[into] = piece.read()[out_of]
            filled += math.prod(end - start for start, end in overlap)
        if filled != math.prod(shape):
            raise ValueError(
                f"{self.name} is incomplete: only {filled} of {math.prod(shape)} values are stored"
            )
        return block


def _overlap(offset, shape, piece: Piece) -> tuple[tuple[int, int], ...] | None:
    """[start, end) of the overlap of a block and a piece in each dimension; None without an overlap."""
    ranges = tuple(
        (max(a, b), min(a + n, b + m)) for a, n, b, m in zip(offset, shape, piece.offset, piece.shape)
    )
    return None if any(start >= end for start, end in ranges) else ranges


def whole(name: str, dtype: str, shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> StoredTensor:
    """A tensor stored in a single piece."""
    return StoredTensor(name, dtype, shape, (Piece((0,) * len(shape), shape, read),))


def layer_of(stack: StoredTensor, layer: int) -> StoredTensor:
    """A single layer of a tensor whose first dimension counts the layers."""
    shape = stack.shape[1:]
    start = (layer,) + (0,) * len(shape)
    name = f"{stack.name}[{layer}]"
    return whole(name, stack.dtype, shape, lambda: stack.read_block(start, (1, *shape)).reshape(shape))
