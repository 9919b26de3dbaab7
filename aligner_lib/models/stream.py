"""Safetensors files as raw bytes: read and written one tensor at a time, without torch, in any dtype.

numpy has no bfloat16, so it passes through as 16-bit integers: an import copies numbers and never computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aligner_lib.models.tensor_store import Block, blocks_as_metadata, read_header

CARRIERS = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
}  # dtype → what holds its bits


class TensorFile:
    """One safetensors file. Raises ValueError when it is damaged or has a dtype that is not supported."""

    def __init__(self, path: Path):
        self.path = Path(path)
        header = read_header(self.path)
        if not isinstance(header, dict):
            raise ValueError(f"{self.path} is damaged: its header is no JSON object; download it again")
        self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        self._data_start = 8 + int.from_bytes(self.path.open("rb").read(8), "little")
        end = self._data_start + max(
            (entry["data_offsets"][1] for entry in self._entries.values()), default=0
        )
        if (size := self.path.stat().st_size) != end:
            raise ValueError(
                f"{self.path} is damaged: it has {size} bytes and should have {end}; download it again"
            )

    def names(self) -> set[str]:
        """The names of all tensors in the file."""
        return set(self._entries)

    def dtype(self, name: str) -> str:
        """A tensor's dtype, a key of CARRIERS. Raises ValueError for another."""
        dtype = self._entries[name]["dtype"]
        if dtype not in CARRIERS:
            raise ValueError(f"{self.path}: {name} is {dtype}; the importer reads {', '.join(CARRIERS)}")
        return dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self._entries[name]["shape"])

    def read(self, name: str) -> np.ndarray:
        """A tensor's values as an array of its carrier's dtype.

        The file is read rather than mapped, so that the memory is released with the array.
        """
        start, end = self._entries[name]["data_offsets"]
        carrier = np.dtype(CARRIERS[self.dtype(name)])
        count = (end - start) // carrier.itemsize
        return np.fromfile(self.path, carrier, count, offset=self._data_start + start).reshape(
            self.shape(name)
        )


class StreamedTensor(NamedTuple):
    """A tensor that is computed when it is written, as one block that covers it completely."""

    name: str
    dtype: str  # a key of CARRIERS
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]


def write_store(
    folder: Path, tensors: Sequence[StreamedTensor], progress: Callable[[int, int], None] | None
) -> None:
    """Write a store (see `aligner_lib.models.tensor_store`) of one file, with one tensor in memory at a time.

    progress: called with (tensors done, tensors in all).
    """
    # the wider dtype first, as safetensors' own writer does, so that every tensor begins at a multiple of its width
    tensors = sorted(tensors, key=lambda tensor: -np.dtype(CARRIERS[tensor.dtype]).itemsize)
    folder.mkdir(parents=True)
    with (folder / "rank00000_00000.safetensors").open("wb") as file:
        file.write(_header(tensors))
        for done, tensor in enumerate(tensors, start=1):
            values = np.ascontiguousarray(tensor.make())
            assert values.shape == tensor.shape, f"{tensor.name}: {values.shape} is not {tensor.shape}"
            assert values.dtype == CARRIERS[tensor.dtype], (
                f"{tensor.name}: {values.dtype} is not {tensor.dtype}"
            )
            file.write(values.data)
            if progress:
                progress(done, len(tensors))


def _header(tensors: Sequence[StreamedTensor]) -> bytes:
    header, end = {}, 0
    metadata = blocks_as_metadata({str(key): _block(tensor) for key, tensor in enumerate(tensors)})
    for key, tensor in enumerate(tensors):
        start, end = end, end + int(np.prod(tensor.shape)) * np.dtype(CARRIERS[tensor.dtype]).itemsize
        header[str(key)] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _block(tensor: StreamedTensor) -> Block:
    return Block(tensor.name, tensor.shape, (0,) * len(tensor.shape), tensor.shape)
