"""Read torch.save files without torch: the pickle as data, the storages directly into numpy arrays.

The file is a zip of uncompressed members. data.pkl contains a storage, a shape and strides for each tensor. The storages' bytes
are under data/ (torch/serialization.py describes the format).
"""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from aligner_lib.models.nemo.pickled import ORDERED_DICT, Call, External, Global, read_pickle
from aligner_lib.models.nemo.stored import StoredTensor, whole
from aligner_lib.models.nemo.window import Window
from aligner_lib.models.stream import CARRIERS

STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
ALLOWED = {
    ORDERED_DICT,
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch._tensor._rebuild_from_type_v2",  # a tensor with an attribute
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.Size",
    "torch.storage.UntypedStorage",
    # Transformer Engine's extra state, which contains no weights
    "_io.BytesIO",
    "io.BytesIO",
    "_codecs.encode",
    *(f"torch.{name}" for name in STORAGES),
}
MAX_PICKLE = 1 << 26
# the errors of reading a zip: not a zip, a truncated zip, or a malicious zip
DAMAGED = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, KeyError)
CHUNK = 1 << 22
# the magic number of files from torch before release 1.6
BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class TorchFile:
    """A torch.save file. `content` is the saved object, with a `Call` for each tensor; see `tensor`.

    Raises ValueError with the file's name for a damaged or compressed file, for a file from before torch 1.6, and for a pickle
    with a name that weights do not need.
    """

    def __init__(self, file: Window, label: str):
        self.label = label
        beginning = file.read(min(len(BEFORE_ZIP), file.size))
        if beginning == BEFORE_ZIP:
            raise ValueError(
                f"{label} was saved by torch before 1.6: load and save the file again with a newer torch"
            )
        try:
            self._zip = zipfile.ZipFile(file)
            names = self._zip.namelist()
            pickles = [name for name in names if name.endswith("data.pkl") and name.count("/") <= 1]
            if len(pickles) != 1 or len(set(names)) != len(names):
                raise ValueError("data.pkl is missing, or two members have the same name")
            self._folder = pickles[0].removesuffix("data.pkl")
            order = f"{self._folder}byteorder"
            if order in names and self._bytes(order, 16) != b"little":
                raise ValueError("its numbers are big-endian, but this machine's are little-endian")
            self.content = read_pickle(self._bytes(pickles[0], MAX_PICKLE), ALLOWED.__contains__)
        except DAMAGED as error:
            raise ValueError(f"{label} is refused: {_shown(error)}") from None

    def state_dict(self) -> dict[str, StoredTensor]:
        """The saved tensors by their names, from an inner `state_dict` if there is one. Other objects are left out.

        Raises ValueError when the saved object is not a dictionary.
        """
        content = self.content
        if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
            content = content["state_dict"]
        if not isinstance(content, dict):
            raise ValueError(f"{self.label} contains no state dict")
        tensors = {}
        for name, value in content.items():
            if isinstance(name, str) and _is_tensor(value):
                tensors[name] = self.tensor(value, f"{self.label}: {name}")
        return tensors

    def tensor(self, value: Any, name: str) -> StoredTensor:
        """The tensor of a `Call`. Raises ValueError for other values, and for a tensor that does not fit its storage."""
        try:
            view = _view_of(value)
        except (ValueError, TypeError, IndexError, KeyError, AttributeError, RecursionError):
            raise ValueError(f"{name} is not a readable tensor") from None
        if not view.fits():
            raise ValueError(f"{name} reaches beyond its storage, or uses values twice")
        return whole(name, view.dtype, view.shape, lambda: self._read(view, name))

    def _read(self, view: _View, name: str) -> np.ndarray:
        """The values of a tensor, in new memory."""
        span = view.span()
        values = np.empty(span, CARRIERS[view.dtype])
        try:
            info = self._info(f"{self._folder}data/{view.key}")
            width = WIDTHS[view.dtype]
            if info.file_size != view.storage_size * width:
                raise ValueError(
                    f"its storage has {info.file_size} bytes instead of {view.storage_size * width}"
                )
            with self._zip.open(info) as file:
                file.seek(view.start * width)
                _fill(memoryview(values).cast("B") if span else memoryview(b""), file)
        except DAMAGED as error:
            raise ValueError(f"{name} is damaged ({_shown(error)}): download the file again") from None
        if view.is_contiguous():
            return values.reshape(view.shape)
        steps = [stride * values.itemsize for stride in view.strides]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, view.shape, steps))

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._zip.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ValueError(f"{ascii(name)[:80]} is compressed or encrypted, which torch never does")
        return info

    def _bytes(self, name: str, limit: int) -> bytes:
        info = self._info(name)
        if info.file_size > limit:
            raise ValueError(f"{ascii(name)[:80]} has {info.file_size} bytes")
        data = bytearray(info.file_size)
        with self._zip.open(info) as file:
            _fill(memoryview(data), file)
        return bytes(data)


@dataclass(frozen=True)
class _View:
    """A tensor as a part of a storage. Positions count numbers, not bytes."""

    key: str
    dtype: str
    storage_size: int
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def span(self) -> int:
        """The length of the range in the storage from the tensor's first to its last value, both included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))

    def fits(self) -> bool:
        counts = (self.start, self.storage_size, *self.shape, *self.strides)
        if any(type(count) is not int or count < 0 for count in counts) or len(self.shape) != len(
            self.strides
        ):
            return False
        # a stride of 0 could expand a single number into a tensor of any size
        return math.prod(self.shape) <= self.span() and self.start + self.span() <= self.storage_size

    def is_contiguous(self) -> bool:
        expected, step = [], 1
        for size in reversed(self.shape):
            expected.append(step)
            step *= size
        return all(
            size == 1 or stride == contiguous_stride
            for size, stride, contiguous_stride in zip(self.shape, self.strides, reversed(expected))
        )


def _view_of(value: Call) -> _View:
    """The view described by a call of torch's rebuilding functions."""
    if value.function == "torch._utils._rebuild_parameter":
        return _view_of(value.args[0])
    if value.function == "torch._tensor._rebuild_from_type_v2":
        function, _, args, _ = value.args
        return _view_of(Call(function.name, args))
    if value.function != "torch._utils._rebuild_tensor_v2":
        raise ValueError(value.function)
    storage, start, shape, strides, *_ = value.args
    kind, storage_class, key, _, size = storage.id
    known = isinstance(storage, External) and isinstance(storage_class, Global) and isinstance(key, str)
    if not known or kind != "storage":
        raise ValueError("no storage")
    return _View(
        key, STORAGES[storage_class.name.rpartition(".")[2]], size, start, tuple(shape), tuple(strides)
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Call) and value.function.startswith(
        ("torch._utils._rebuild", "torch._tensor._rebuild")
    )


def _fill(view: memoryview, file) -> None:
    """Read until the view is full. Raises EOFError when the file ends early."""
    done = 0
    while done < len(view):
        chunk = file.read(min(CHUNK, len(view) - done))
        if not chunk:
            raise EOFError("the file ends too early")
        view[done : done + len(chunk)] = chunk
        done += len(chunk)


def all_of(file) -> bytes:
    """The whole content of a file. The caller must have checked the file's size."""
    data = bytearray(file.size)
    _fill(memoryview(data), file)
    return bytes(data)


def _shown(error: Exception) -> str:
    return (
        str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {ascii(str(error))[:80]}"
    )
