"""Read and write safetensors files as raw bytes, one tensor at a time, without torch, in any dtype.

numpy has no bfloat16, so bfloat16 values are carried as 16-bit integers. An import copies numbers and never computes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aligner_lib.models.tensor_store import Block, StoreIndex, blocks_as_metadata, read_header
from cluster.record import write_json

# dtype → the numpy dtype for the same bits
CARRIERS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class TensorFile:
    """A safetensors file. Raises ValueError for a damaged file and for an unsupported dtype."""

    def __init__(self, path: Path):
        self.path = Path(path)
        header = read_header(self.path)
        self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        self._data_start = 8 + int.from_bytes(self.path.open("rb").read(8), "little")
        end = self._data_start + max(
            (entry["data_offsets"][1] for entry in self._entries.values()), default=0
        )
        if (size := self.path.stat().st_size) != end:
            raise ValueError(
                f"{self.path} is damaged, with {size} bytes instead of {end}: download the file again"
            )

    def names(self) -> set[str]:
        """The names of all tensors in the file."""
        return set(self._entries)

    def dtype(self, name: str) -> str:
        """A tensor's dtype, a key of CARRIERS. Raises ValueError for any other dtype."""
        dtype = self._entries[name]["dtype"]
        if dtype not in CARRIERS:
            raise ValueError(f"{self.path}: {name} is {dtype}; only {', '.join(CARRIERS)} can be read")
        return dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self._entries[name]["shape"])

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor, in the carrier's dtype.

        The file is read instead of mapped, so that the memory is released with the array.
        """
        start, end = self._entries[name]["data_offsets"]
        carrier = np.dtype(CARRIERS[self.dtype(name)])
        count = (end - start) // carrier.itemsize
        return np.fromfile(self.path, carrier, count, offset=self._data_start + start).reshape(
            self.shape(name)
        )


class StoredArrays(StoreIndex):
    """Reads whole tensors of a store as arrays, without torch. Any parallelism may have written the store.

    Raises the errors of StoreIndex and TensorFile, and ValueError for a tensor with missing values.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        paths = {path for name in self.names() for path, _, _ in self.pieces(name)}
        self._files = {path: TensorFile(path) for path in paths}

    def dtype(self, name: str) -> str:
        """A tensor's dtype, a key of CARRIERS."""
        (path, key, _), *_ = self.pieces(name)
        return self._files[path].dtype(key)

    def read(self, name: str) -> np.ndarray:
        """The values of a whole tensor, in the carrier's dtype. Only one block is in memory besides the tensor."""
        shape, pieces, filled = self.shape(name), self.pieces(name), 0
        if len(pieces) == 1 and pieces[0][2].shape == shape and pieces[0][2].flat is None:
            path, key, _ = pieces[0]
            return self._files[path].read(key)
        whole = np.empty(shape, CARRIERS[self.dtype(name)])
        for path, key, block in pieces:
            place = tuple(slice(start, start + size) for start, size in zip(block.offset, block.shape))
            start, end = block.flat or (0, math.prod(block.shape))
            # start from the current values, because other parts of the same block may already be in place
            values = whole[place].reshape(-1)
            values[start:end] = self._files[path].read(key).reshape(-1)
            whole[place] = values.reshape(block.shape)
            filled += end - start
        if filled != whole.size:
            raise ValueError(f"{name} in {self.folder} is incomplete: {filled} of {whole.size} values")
        return whole


class StreamedTensor(NamedTuple):
    """A tensor whose values are computed when the tensor is written."""

    name: str
    dtype: str
    """A key of CARRIERS."""
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def num_bytes(self) -> int:
        """The size of the values in bytes."""
        return math.prod(self.shape) * np.dtype(CARRIERS[self.dtype]).itemsize


def cast(values: np.ndarray, dtype: str, target: str) -> np.ndarray:
    """Convert values from one dtype to another, rounding to nearest even. bfloat16 values are their bits in uint16.

    dtype, target: keys of CARRIERS. Raises ValueError for finite values that become infinite.
    """
    if dtype == target:
        return values
    if dtype == "BF16":
        bits = values.astype(np.uint32)
        bits <<= 16
        values = bits.view(np.float32)
    with np.errstate(over="ignore"):
        result = values.astype(np.float32 if target == "BF16" else CARRIERS[target], copy=False)
    if not np.array_equal(np.isinf(result), np.isinf(values)):
        raise ValueError(
            f"values up to {np.abs(values[np.isfinite(values)]).max():g} are too large for {target}"
        )
    return _bfloat16_bits(result) if target == "BF16" else result


def _bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 → the upper half of the bits, as uint16, after rounding to nearest even."""
    import gguf

    bits = gguf.quantize(np.ascontiguousarray(values), gguf.GGMLQuantizationType.BF16)
    return bits.view(np.uint16).reshape(values.shape)


def write_store(
    folder: Path, tensors: Sequence[StreamedTensor], progress: Callable[[int, int], None] | None
) -> None:
    """Write a store (see `aligner_lib.models.tensor_store`) as a single file, with one tensor in memory at a time.

    progress: called with (tensors done, tensors in all).
    """
    tensors = _in_order(tensors)
    metadata = blocks_as_metadata({str(key): _block(tensor) for key, tensor in enumerate(tensors)})
    numbered = [tensor._replace(name=str(key)) for key, tensor in enumerate(tensors)]
    folder.mkdir(parents=True)
    for done, _ in enumerate(
        _write_file(folder / "rank00000_00000.safetensors", numbered, metadata), start=1
    ):
        if progress:
            progress(done, len(tensors))


def write_shards(
    folder: Path,
    tensors: Sequence[StreamedTensor],
    shard_bytes: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write a Hugging Face folder's weights with one tensor in memory at a time.

    The weights go into model.safetensors. If the file would be larger than `shard_bytes`, the weights go into several files of
    at most `shard_bytes` each (a larger tensor gets its own file) and model.safetensors.index.json. progress: called with
    (tensors done, tensors in all).
    """
    shards = _shards(tensors, shard_bytes)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
        _write_index(folder, dict(zip(names, shards)))
    done = 0
    for name, shard in zip(names, shards):
        for _ in _write_file(folder / name, _in_order(shard), {"format": "pt"}):
            done += 1
            if progress:
                progress(done, len(tensors))


def _shards(tensors: Sequence[StreamedTensor], shard_bytes: int) -> list[list[StreamedTensor]]:
    shards, room = [[]], shard_bytes
    for tensor in tensors:
        if shards[-1] and tensor.num_bytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.num_bytes
    return shards


def _write_index(folder: Path, shards: dict[str, list[StreamedTensor]]) -> None:
    weight_map = {tensor.name: name for name, shard in shards.items() for tensor in shard}
    total = sum(tensor.num_bytes for shard in shards.values() for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def _in_order(tensors: Sequence[StreamedTensor]) -> list[StreamedTensor]:
    """Tensors with a wider dtype first, as in safetensors' own writer, so each tensor begins at a multiple of its width."""
    return sorted(tensors, key=lambda tensor: -np.dtype(CARRIERS[tensor.dtype]).itemsize)


def _write_file(
    path: Path, tensors: Sequence[StreamedTensor], metadata: dict[str, str]
) -> Iterator[StreamedTensor]:
    """Write a safetensors file. Yields each tensor after it is written."""
    with path.open("wb") as file:
        file.write(_header(tensors, metadata))
        for tensor in tensors:
            values = np.ascontiguousarray(tensor.make())
            assert values.shape == tensor.shape, f"{tensor.name}: {values.shape} is not {tensor.shape}"
            assert values.dtype == CARRIERS[tensor.dtype], (
                f"{tensor.name}: {values.dtype} is not {tensor.dtype}"
            )
            file.write(values.data)
            del values  # free the memory before the next tensor is made
            yield tensor


def _header(tensors: Sequence[StreamedTensor], metadata: dict[str, str]) -> bytes:
    header, end = {}, 0
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _block(tensor: StreamedTensor) -> Block:
    return Block(tensor.name, tensor.shape, (0,) * len(tensor.shape), tensor.shape)
