"""Tensors on disk in blocks: written under any parallelism, read under any other.

A store is a folder of safetensors files. Each stored tensor is a *block* of a named global tensor. Its metadata gives the
global shape, the block's offset and shape and, for the distributed optimizer's flat shards, the stored range of the flattened
block. A reader asks for any block of the global tensor, and the store copies together the values of all overlapping blocks.
There is no pickle, so reading a stranger's checkpoint runs no code.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:  # imported only for computing: checking a store and importing a model need no torch
    import torch

# a file is written as soon as its blocks have this size, which bounds the memory of a streaming import
FILE_BYTES = 1 << 28

# enough for about 25,000 tensors; the Python objects of a malicious header take thirty times as much memory
HEADER_BYTES = 3_000_000
# bytes of a value
BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
METADATA_KEY = "blocks"


@dataclass(frozen=True)
class Block:
    """The part of a global tensor in a stored tensor."""

    name: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    flat: tuple[int, int] | None = None
    """[start, end) of the flattened block; None: the whole block."""

    @staticmethod
    def whole(name: str, tensor: torch.Tensor) -> Block:
        """The block of a whole tensor."""
        return Block(name, tuple(tensor.shape), (0,) * tensor.dim(), tuple(tensor.shape))


class StoreWriter:
    """Writes blocks into a folder, one file at a time. Several ranks may write side by side."""

    def __init__(self, folder: Path, rank: int = 0):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self._files = 0
        self._pending: dict[str, torch.Tensor] = {}
        self._blocks: dict[str, Block] = {}
        self._bytes = 0

    def add(self, block: Block, tensor: torch.Tensor) -> None:
        """Add a block to the next file.

        tensor: the block's values, of block.shape in any dtype, or the range `block.flat` of the flattened values.
        """
        expected = math.prod(block.shape) if block.flat is None else block.flat[1] - block.flat[0]
        assert tensor.numel() == expected, f"{block.name}: {tensor.numel()} values for a block of {expected}"
        key = str(len(self._pending))
        self._pending[key] = tensor.detach().cpu().contiguous()
        self._blocks[key] = block
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the pending blocks into a new file. After the call, the file is on the disk."""
        from safetensors.torch import save_file

        if self._pending:
            path = self.folder / f"rank{self.rank:05d}_{self._files:05d}.safetensors"
            path.touch()
            mode = path.stat().st_mode
            save_file(self._pending, path, metadata=blocks_as_metadata(self._blocks))
            path.chmod(mode)  # safetensors creates files that only their owner may read
            with open(path, "rb") as file:
                # only the writing machine can sync the file, and another rank accepts the checkpoint
                os.fsync(file.fileno())
            self._files += 1
            self._pending, self._blocks, self._bytes = {}, {}, 0


def blocks_as_metadata(blocks: dict[str, Block]) -> dict[str, str]:
    """A file's metadata: a JSON entry with the description of all blocks.

    safetensors writes several entries in random order, but equal runs must give equal files.
    """
    return {METADATA_KEY: json.dumps({key: asdict(block) for key, block in blocks.items()})}


class StoreIndex:
    """The global tensors in a folder, and the places of their blocks.

    Raises FileNotFoundError when there is no store, KeyError with the name of a missing tensor, and
    ValueError for a damaged file.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self._where: dict[str, list[tuple[Path, str, Block]]] = defaultdict(list)
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise FileNotFoundError(f"there are no weights in {self.folder}: no .safetensors file")
        for path in paths:
            for key, block in _blocks_of(path):
                self._where[block.name].append((path, key, block))

    def names(self) -> list[str]:
        """The names of all global tensors, sorted."""
        return sorted(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        """The global shape of a tensor. Raises KeyError."""
        return self.pieces(name)[0][2].global_shape

    def pieces(self, name: str) -> list[tuple[Path, str, Block]]:
        """The blocks of a tensor: (file, key in the file, block). Raises KeyError."""
        if name not in self._where:
            raise KeyError(f"{self.folder} has no tensor {name!r}, but {len(self._where)} others")
        return self._where[name]


class StoreReader(StoreIndex):
    """Reads any block of any global tensor in a folder, as torch tensors.

    Raises the errors of StoreIndex, and ValueError for a request with another global shape.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._open: dict[Path, safe_open] = {}

    def read(self, block: Block, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values of a block: a new CPU tensor of block.shape. `block.flat` is ignored.

        dtype: of the result; None: the stored dtype. Raises KeyError for a missing tensor, ValueError for another global shape
        and for missing values.
        """
        import torch

        pieces = self.pieces(block.name)
        stored_shape = pieces[0][2].global_shape
        if stored_shape != tuple(block.global_shape):
            raise ValueError(
                f"{block.name} in {self.folder} has shape {list(stored_shape)}, but the model needs {list(block.global_shape)}: "
                "the checkpoint is of another architecture"
            )
        if len(pieces) == 1 and pieces[0][2] == block:
            return self._load(*pieces[0][:2]).to(dtype)
        out, filled = None, 0
        for path, key, stored in pieces:
            overlap = _overlap(block, stored)
            if overlap is None:
                continue
            source = self._load(path, key)
            if out is None:
                out = torch.empty(block.shape, dtype=dtype or source.dtype)
            filled += _copy_overlap(out, block, source, stored, overlap)
        if filled != math.prod(block.shape):
            raise ValueError(
                f"{block.name} in {self.folder} is incomplete: {filled} of {math.prod(block.shape)} values"
            )
        return out

    def read_whole(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A whole global tensor; see `read`."""
        shape = self.shape(name)
        return self.read(Block(name, shape, (0,) * len(shape), shape), dtype)

    def _load(self, path: Path, key: str) -> torch.Tensor:
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        return self._open[path].get_tensor(key)


def check_store(folder: Path) -> int:
    """Check the files of a store by their headers and lengths. Returns the store's size in bytes.

    Raises ValueError with the name of a damaged file.
    """
    return sum(check_file(path) for path in sorted(Path(folder).glob("*.safetensors")))


def check_file(path: Path) -> int:
    """Check a safetensors file by its header and length. Returns the size in bytes. Raises ValueError for a damaged file."""
    header = read_header(path)
    end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    size = path.stat().st_size
    header_bytes = 8 + int.from_bytes(path.open("rb").read(8), "little")
    if size != header_bytes + end:
        raise ValueError(f"{path} is damaged, with {size} bytes instead of {header_bytes + end}")
    return size


def read_header(path: Path) -> dict:
    """A safetensors file's header: dtype, shape and data_offsets of each tensor.

    Raises ValueError for a damaged header: malformed entries, and values that overlap, leave a gap or do not fit their shape.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size - 8:
            raise ValueError(f"{path} is damaged: the file ends within its header")
        if length > HEADER_BYTES:
            raise ValueError(
                f"{path} has a header of {length} bytes, but at most {HEADER_BYTES} can be read: save the weights as "
                "several files"
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: its header can't be read ({error})") from None
    if not isinstance(header, dict):
        raise ValueError(
            f"{path} is damaged, because its header is not a JSON object: download the file again"
        )
    _check_entries(header, path)
    return header


def _check_entries(header: dict, path: Path) -> None:
    """Raises ValueError unless the tensors' bytes follow one another without gaps, as the format requires."""
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        offsets, shape, dtype = (
            entry.get(key) if isinstance(entry, dict) else None for key in ("data_offsets", "shape", "dtype")
        )
        if not (_are_counts(offsets) and len(offsets) == 2 and _are_counts(shape) and isinstance(dtype, str)):
            raise ValueError(
                f"{path} is damaged: {name[:100]!r} has no dtype, shape and data_offsets of integers"
            )
        values = math.prod(shape)
        if offsets[1] - offsets[0] != values * BYTES.get(
            dtype, values and (offsets[1] - offsets[0]) // values
        ):
            raise ValueError(
                f"{path} is damaged: {name[:100]!r} has {offsets[1] - offsets[0]} bytes for {values} values of {dtype[:20]}"
            )
        spans.append((*offsets, name))
    end = 0
    for start, stop, name in sorted(spans):
        if start != end or stop < start:
            raise ValueError(
                f"{path} is damaged: {name[:100]!r} lies at bytes {start} to {stop}, but the previous tensor ends at "
                f"{end}"
            )
        end = stop


def _are_counts(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 64
        and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
    )


def _blocks_of(path: Path) -> Iterator[tuple[str, Block]]:
    metadata = read_header(path).get("__metadata__", {})
    if not isinstance(metadata, dict) or METADATA_KEY not in metadata:
        raise ValueError(
            f"{path} has no list of blocks, because another version of Aligner Lab wrote the file: make the file again"
        )
    for key, fields in json.loads(metadata[METADATA_KEY]).items():
        flat = tuple(fields.pop("flat")) if fields["flat"] else fields.pop("flat")
        yield key, Block(fields.pop("name"), **{k: tuple(v) for k, v in fields.items()}, flat=flat)


def _overlap(block: Block, stored: Block) -> tuple[tuple[int, int], ...] | None:
    """[start, end) of the overlap of two blocks in each dimension, in global coordinates; None without an overlap."""
    ranges = tuple(
        (max(a, b), min(a + n, b + m))
        for a, n, b, m in zip(block.offset, block.shape, stored.offset, stored.shape)
    )
    return None if any(start >= end for start, end in ranges) else ranges


def _copy_overlap(out: torch.Tensor, block: Block, source: torch.Tensor, stored: Block, overlap) -> int:
    import torch

    into = tuple(slice(start - o, end - o) for (start, end), o in zip(overlap, block.offset))
    out_of = tuple(slice(start - o, end - o) for (start, end), o in zip(overlap, stored.offset))
    if stored.flat is None:
        out[into] = source.reshape(stored.shape)[out_of].to(out.dtype)
        return out[into].numel()
    # a flat part is not a rectangle, so the part is put into the whole block, and only its values are copied
    start, end = stored.flat
    values = torch.zeros(math.prod(stored.shape), dtype=out.dtype)
    present = torch.zeros(math.prod(stored.shape), dtype=torch.bool)
    values[start:end], present[start:end] = source.to(out.dtype), True
    values, present = values.view(stored.shape)[out_of], present.view(stored.shape)[out_of]
    out[into] = torch.where(present, values, out[into])
    return int(present.sum())
