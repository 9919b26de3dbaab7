"""Megatron Core's distributed checkpoint with the backend torch_dist: .metadata, a pickle, locates the blocks in .distcp files.

The layout is torch.distributed.checkpoint's. The metadata contains each tensor's shape and blocks. For each block, the metadata
contains the file, the offset and the length of the block's bytes, which have the format of torch.save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aligner_lib.models.nemo.archive import BadArchive, NemoArchive
from aligner_lib.models.nemo.pickled import Call, Global, read_pickle
from aligner_lib.models.nemo.stored import Piece, StoredTensor
from aligner_lib.models.nemo.torch_file import MAX_PICKLE, TorchFile, all_of

DCP = "torch.distributed.checkpoint."
DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
}


def tensors_in(archive: NemoArchive, folder: str) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint by their names. Other objects are left out.

    folder: the checkpoint's folder in the archive, with a slash. Raises ValueError for damaged metadata.
    """
    label = f"{archive.path}: {folder}.metadata"
    try:
        with archive.open(f"{folder}.metadata") as file:
            if file.size > MAX_PICKLE:
                raise ValueError(f"it has {file.size} bytes")
            data = all_of(file)
        metadata = read_pickle(data, _is_known).state
        entries = metadata["state_dict_metadata"]
        places = {_key(index): place.state for index, place in metadata["storage_data"].items()}
        return {
            name: _tensor(archive, folder, name, entry.state, places)
            for name, entry in entries.items()
            if entry.function.endswith(".TensorStorageMetadata")
        }
    except BadArchive:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{label} can't be read ({ascii(str(error))[:200]})") from None


def _is_known(name: str) -> bool:
    """Whether a name belongs to the metadata's own classes, which are read as data."""
    plain = (
        "torch.Size",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "collections.OrderedDict",
        *DTYPES,
    )
    ours = name.startswith((DCP, "megatron.core.dist_checkpointing."))
    return (
        ours or name in plain or (name.startswith("torch.") and name.count(".") == 1 and name[6:].islower())
    )


def _key(index: Call) -> tuple[str, tuple[int, ...]]:
    """The name and the offset of a block."""
    return index.state["fqn"], _size(index.state.get("offset") or ())


def _size(size: Any) -> tuple[int, ...]:
    """The numbers of a torch.Size. Raises ValueError for other values than integers from 0 on."""
    numbers = tuple(size.args[0]) if isinstance(size, Call) else tuple(size)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a size with other values than integers from 0 on")
    return numbers


def _tensor(archive: NemoArchive, folder: str, name: str, entry: dict, places: dict) -> StoredTensor:
    shape = _size(entry["size"])
    dtype = _dtype(entry["properties"])
    pieces = []
    for chunk in entry["chunks"]:
        offset, size = _size(chunk.state["offsets"]), _size(chunk.state["sizes"])
        # an unsharded tensor has no offset
        place = places.get((name, offset), places.get((name, ())))
        if place is None or len(offset) != len(shape) or len(size) != len(shape):
            raise ValueError(f"{name[:80]} has a block at {offset} outside every file")
        if place.get("transform_descriptors"):
            raise ValueError(f"{name[:80]} was written through {place['transform_descriptors']}")
        pieces.append(Piece(offset, size, _reader(archive, folder, name, dtype, size, place)))
    return StoredTensor(f"{archive.path}: {name}", dtype, shape, tuple(pieces))


def _dtype(properties: Call) -> str:
    dtype = properties.state[0]
    return DTYPES.get(dtype.name, dtype.name) if isinstance(dtype, Global) else "unknown"


def _reader(
    archive: NemoArchive, folder: str, name: str, dtype: str, shape: tuple[int, ...], place: dict
) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        label = f"{archive.path}: {name}"
        with archive.open(f"{folder}{place['relative_path']}") as file:
            try:
                part = file.part(place["offset"], place["length"])
            except (ValueError, TypeError):
                raise BadArchive(
                    f"{label} lies beyond the end of {place['relative_path']}, which is cut off: download the file "
                    "again"
                ) from None
            saved = TorchFile(part, label)
            tensor = saved.tensor(saved.content, label)
            if (tensor.shape, tensor.dtype) != (shape, dtype):
                raise ValueError(f"{label} is {tensor.dtype} {tensor.shape}; .metadata says {dtype} {shape}")
            return tensor.read()

    return read
