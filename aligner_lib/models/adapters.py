"""Model folders that hold only adapters (LoRA), and the combined weights of adapters and their base.

An adapter of a weight W [O, I] is a pair, A [R, I] and B [O, R], and a scale: the adapted weight is W + scale · B A. The folder
also records the base, which is the model of the adapters. A folder may contain a new head, and the base may have adapters, too.

Source: Hu et al. 2021 (arXiv:2106.09685)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.datasets.json_file import key_errors_in, read_object
from aligner_lib.models.hash import ADAPTERS, model_hash
from aligner_lib.models.tensor_store import Block, StoreReader
from cluster.record import write_json

if TYPE_CHECKING:
    import torch

A, B = "lora_a", "lora_b"  # the last part of an adapter's name, in place of the layer's `weight`


@dataclass(frozen=True)
class Adapter:
    """The rank and the scale of the adapters of one kind of linear layer."""

    rank: int
    scale: float


@dataclass(frozen=True)
class AdapterRecord:
    """The base and the shapes of a folder's adapters."""

    base: Path
    """A model folder."""
    base_hash: str
    layers: Mapping[str, Adapter]
    """By the layer's name, such as `linear_qkv`."""

    def save(self, folder: Path) -> None:
        """Write adapter.json into a checkpoint folder."""
        layers = {name: asdict(adapter) for name, adapter in self.layers.items()}
        write_json(
            Path(folder) / ADAPTERS,
            {"base": {"path": str(self.base), "hash": self.base_hash}, "layers": layers},
        )

    @staticmethod
    def load(folder: Path) -> AdapterRecord | None:
        """Read adapter.json; None for a model folder with all of its weights."""
        path = Path(folder) / ADAPTERS
        if not path.exists():
            return None
        stored = read_object(path)
        with key_errors_in(path):
            layers = {name: Adapter(**adapter) for name, adapter in stored["layers"].items()}
            return AdapterRecord(Path(stored["base"]["path"]), stored["base"]["hash"], layers)

    def is_of_same(self, other: AdapterRecord) -> bool:
        """Whether both records have the same shapes and the same base model, in any folder."""
        return (self.base_hash, self.layers) == (other.base_hash, other.layers)


def check_base(folder: Path) -> None:
    """Raises ValueError for a folder of adapters whose base is gone or has changed."""
    record = AdapterRecord.load(folder)
    if record is None:
        return
    path = folder / ADAPTERS
    if not (record.base / "model.json").exists():
        raise ValueError(
            f"{folder} holds adapters (LoRA) of the model in {record.base}, which is gone: put the model back, or "
            f"write its new place as base.path into {path}"
        )
    check_base(record.base)
    if (base_hash := model_hash(record.base)) != record.base_hash:
        raise ValueError(
            f"{folder} holds adapters (LoRA) of the model in {record.base}, which has changed: its hash is now "
            f"{base_hash}, but the adapters belong to {record.base_hash}. Write the place of their base as base.path into {path}"
        )


def open_weights(folder: Path) -> StoreReader:
    """Open a model folder's weights. Adapters are added to the weights of their base during reading.

    Raises FileNotFoundError for a folder without weights, ValueError as `check_base`.
    """
    record = AdapterRecord.load(folder)
    if record is None:
        return StoreReader(Path(folder) / "weights")
    check_base(folder)
    return AdaptedWeights(Path(folder), record)


class AdaptedWeights(StoreReader):
    """A base's weights with adapters added. Other weights in the adapters' folder replace the base's weights."""

    def __init__(self, folder: Path, record: AdapterRecord):
        super().__init__(folder / "weights")
        self._layers, self._base = record.layers, open_weights(record.base)
        self._own = {name for name in self._where if name.rpartition(".")[2] not in (A, B)}

    def names(self) -> list[str]:
        """The names of all global tensors, sorted; without the output layer when the folder has a scalar head."""
        # a scalar head replaces the head for logits
        replaced = {"output_layer.weight"} if "value_head.weight" in self._own else set()
        return sorted((set(self._base.names()) - replaced) | self._own)

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._base

    def shape(self, name: str) -> tuple[int, ...]:
        """See StoreReader."""
        return super().shape(name) if name in self._own else self._base.shape(name)

    def read(self, block: Block, dtype: torch.dtype | None = None) -> torch.Tensor:
        """See StoreReader. An adapted weight is computed in float32; dtype None gives the wider of the two dtypes."""
        import torch

        layer, _, kind = block.name.rpartition(".")
        if block.name in self._own:
            return super().read(block, dtype)
        if kind != "weight" or f"{layer}.{A}" not in self._where:
            return self._base.read(block, dtype)
        adapter = self._layers[layer.rpartition(".")[2]]
        weight = self._base.read(block)
        (rows, columns), (outputs, inputs) = block.offset, block.global_shape
        a = Block(f"{layer}.{A}", (adapter.rank, inputs), (0, columns), (adapter.rank, block.shape[1]))
        b = Block(f"{layer}.{B}", (outputs, adapter.rank), (rows, 0), (block.shape[0], adapter.rank))
        a, b = super().read(a), super().read(b)
        dtype = dtype or torch.promote_types(weight.dtype, a.dtype)
        return torch.addmm(weight.float(), b.float(), a.float(), alpha=adapter.scale).to(dtype)
