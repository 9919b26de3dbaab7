"""Megatron Core's distributed checkpoint with the backend zarr: a folder for each tensor, a file for each chunk (zarr 2).

Megatron writes uncompressed chunks in the shape of a rank's shard. For bfloat16, which zarr lacks, Megatron uses its own name.
"""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np

from aligner_lib.models.nemo.archive import NemoArchive
from aligner_lib.models.nemo.stored import Piece, StoredTensor
from aligner_lib.models.nemo.torch_file import all_of
from aligner_lib.models.stream import CARRIERS

DTYPES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "bfloat16": "BF16", "<V2": "BF16"}
MAX_CHUNKS = 1 << 16


def tensors_in(archive: NemoArchive, folder: str) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint by their names. folder: the checkpoint's folder in the archive, with a slash.

    Raises ValueError for an array that Megatron can't have written.
    """
    tensors = {}
    for path in archive.names():
        if path.startswith(folder) and path.endswith("/.zarray"):
            name = path.removeprefix(folder).removesuffix("/.zarray")
            tensors[name] = _tensor(archive, path.removesuffix(".zarray"), name)
    return tensors


def _tensor(archive: NemoArchive, folder: str, name: str) -> StoredTensor:
    label = f"{archive.path}: {name}"
    try:
        header = json.loads(archive.read(f"{folder}.zarray"))
        shape, chunk = tuple(header["shape"]), tuple(header["chunks"])
        plain = (header["zarr_format"], header["compressor"], header["order"], header.get("filters"))
        separator = header.get("dimension_separator", ".")
        counts = [*shape, *chunk]
        if len(shape) != len(chunk) or any(type(n) is not int or n < 0 for n in counts) or 0 in chunk:
            raise ValueError("its shape is invalid")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{label} is not a zarr array ({ascii(str(error))[:80]})") from None
    if plain != (2, None, "C", None) or separator not in (".", "/"):
        raise ValueError(
            f"{label} is compressed, or not in C order, in which Megatron writes: save the array again, uncompressed "
            "and in C order"
        )
    grid = [range(math.ceil(size / step)) for size, step in zip(shape, chunk)]
    if math.prod(map(len, grid)) > MAX_CHUNKS:
        raise ValueError(
            f"{label} has more than {MAX_CHUNKS} chunks, the most that can be read: save the array again with larger "
            "chunks"
        )
    dtype = (
        DTYPES.get(header["dtype"], str(header["dtype"])[:20])
        if isinstance(header["dtype"], str)
        else "unknown"
    )
    pieces = []
    for place in product(*grid):
        offset = tuple(index * step for index, step in zip(place, chunk))
        inside = tuple(min(step, size - start) for step, size, start in zip(chunk, shape, offset))
        file = folder + separator.join(map(str, place))
        pieces.append(Piece(offset, inside, _reader(archive, file, dtype, chunk, inside)))
    return StoredTensor(label, dtype, shape, tuple(pieces))


def _reader(archive: NemoArchive, path: str, dtype: str, chunk: tuple[int, ...], inside: tuple[int, ...]):
    """A function that reads a chunk. A chunk at the end of a dimension is stored in full size."""

    def read() -> np.ndarray:
        carrier = np.dtype(CARRIERS[dtype])
        with archive.open(path) as file:
            if file.size != math.prod(chunk) * carrier.itemsize:
                raise ValueError(
                    f"{archive.path}: {path} has {file.size} bytes: the file is damaged, or compressed"
                )
            values = np.frombuffer(all_of(file), carrier).reshape(chunk)
        return values[tuple(slice(size) for size in inside)]

    return read
