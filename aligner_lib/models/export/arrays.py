"""A model folder's weights as arrays, without torch. Adapters (LoRA) are merged into their base during reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aligner_lib.models.adapters import A, Adapter, AdapterRecord, B
from aligner_lib.models.stream import StoredArrays, cast


def open_arrays(folder: Path) -> StoredArrays | AdaptedArrays:
    """A model folder's weights. Raises FileNotFoundError for a folder without weights."""
    own, record = StoredArrays(Path(folder) / "weights"), AdapterRecord.load(folder)
    return own if record is None else AdaptedArrays(own, open_arrays(record.base), record.layers)


@dataclass(frozen=True)
class AdaptedArrays:
    """A base's weights with adapters added: W + scale · B A, computed in float32.

    Other weights in the adapters' folder replace the base's weights.
    """

    own: StoredArrays
    base: StoredArrays | AdaptedArrays
    layers: Mapping[str, Adapter]
    """By the layer's name, such as `linear_qkv`."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises KeyError."""
        return self._holder(name).shape(name)

    def dtype(self, name: str) -> str:
        """A tensor's dtype; for an adapted tensor, the wider dtype of base and adapter."""
        stored = self._holder(name).dtype(name)
        if not self._is_adapted(name):
            return stored
        adapter = self.own.dtype(_beside(name, A))
        return stored if adapter == stored else "F32"

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, in the array dtype for its stored dtype."""
        values = self._holder(name).read(name)
        if not self._is_adapted(name):
            return values
        scale = self.layers[name.split(".")[-2]].scale
        a, b = (self._in_float32(self.own, _beside(name, kind)) for kind in (A, B))
        merged = cast(values, self.base.dtype(name), "F32") + (scale * b) @ a
        return cast(merged, "F32", self.dtype(name))

    def _holder(self, name: str) -> StoredArrays | AdaptedArrays:
        return self.own if name in self.own else self.base

    def _is_adapted(self, name: str) -> bool:
        return name.endswith(".weight") and _beside(name, A) in self.own

    @staticmethod
    def _in_float32(arrays: StoredArrays, name: str) -> np.ndarray:
        return cast(arrays.read(name), arrays.dtype(name), "F32")


def _beside(weight: str, kind: str) -> str:
    """The name of a weight's adapter."""
    return f"{weight.removesuffix('.weight')}.{kind}"
