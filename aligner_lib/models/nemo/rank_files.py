"""NeMo's old checkpoint: one torch.save file for each tensor- and pipeline-parallel rank, joined here.

`model_weights.ckpt` alone, `mp_rank_01/model_weights.ckpt` for each tensor-parallel rank, or
`tp_rank_01_pp_rank_002/model_weights.ckpt` for each rank of both kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from aligner_lib.models.nemo.archive import NemoArchive
from aligner_lib.models.nemo.layouts import layer_number, megatron_name, with_layer
from aligner_lib.models.nemo.stored import Piece, StoredTensor, whole
from aligner_lib.models.nemo.torch_file import TorchFile

FILE = "model_weights.ckpt"
RANK = re.compile(r"(?:mp_rank_(?P<mp>\d+)|tp_rank_(?P<tp>\d+)_pp_rank_(?P<pp>\d+))/model_weights\.ckpt")
FIRST_PROJECTION = ("mlp.linear_fc1.weight", "mlp.linear_fc1.bias")
BY_ROWS = ("word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias", "linear_fc1.weight_v",
           *FIRST_PROJECTION)  # fmt: skip
BY_COLUMNS = ("linear_proj.weight", "linear_fc2.weight", "value_head.weight")


def tensors_in(archive: NemoArchive, gated: bool) -> dict[str, StoredTensor]:
    """The whole tensors under Megatron's names, with the layer numbers of the whole model.

    gated: whether the first projection of an MLP has two parts, gate and up; each rank has a shard of both.

    Raises ValueError when a rank's file is missing, or when ranks disagree.
    """
    ranks = _ranks(archive)
    tp_size, pp_size = (max(rank[i] for rank in ranks) + 1 for i in (0, 1))
    if len(ranks) != tp_size * pp_size:
        raise ValueError(
            f"{archive.path} has the weights of {len(ranks)} ranks; {tp_size} tensor- times {pp_size} "
            "pipeline-parallel ranks are needed: download the file again"
        )
    tensors: dict[str, StoredTensor] = {}
    for stage in range(pp_size):
        first_layer = 1 + max(map(layer_number, tensors), default=-1)  # each file counts its own layers
        shards = [_state_dict(archive, ranks[tp, stage], first_layer) for tp in range(tp_size)]
        if any(shard.keys() != shards[0].keys() for shard in shards):
            raise ValueError(f"{archive.path}: the files of the tensor-parallel ranks have different weights")
        for name in shards[0]:
            in_halves = gated and name.endswith(FIRST_PROJECTION) and f"{name}_v" not in shards[0]
            tensors[name] = _joined(name, [shard[name] for shard in shards], in_halves)
    return tensors


def _ranks(archive: NemoArchive) -> dict[tuple[int, int], str]:
    """The file of each (tensor-, pipeline-parallel) rank."""
    if FILE in archive:
        return {(0, 0): FILE}
    matches = [match for name in archive.names() if (match := RANK.fullmatch(name))]
    ranks = {(int(match["mp"] or match["tp"]), int(match["pp"] or 0)): match[0] for match in matches}
    if not ranks or len(ranks) < len(matches):
        raise ValueError(
            f"{archive.path} has neither {FILE} nor mp_rank_NN/ or tp_rank_NN_pp_rank_NNN/ with a file for each rank"
        )
    return ranks


def _state_dict(archive: NemoArchive, path: str, first_layer: int) -> dict[str, StoredTensor]:
    """A rank's tensors under Megatron's names. first_layer: the number of the rank's first layer in the whole model."""
    file = TorchFile(archive.open(path), f"{archive.path}: {path}")
    renamed = {}
    for stored, tensor in file.state_dict().items():
        if (name := megatron_name(stored)) is not None:
            name = with_layer(name, layer_number(name) + first_layer)
            if name in renamed:
                raise ValueError(f"{tensor.name} and {renamed[name].name} are the same weight, {name}")
            renamed[name] = tensor
    return renamed


def _joined(name: str, shards: list[StoredTensor], in_halves: bool) -> StoredTensor:
    """A whole tensor from the ranks' shards. If every rank has the tensor in full, all copies are read and compared.

    in_halves: each shard is a part of the gate matrix above a part of the up matrix.
    """
    first = shards[0]
    if len(shards) == 1:
        return first
    if any((shard.dtype, shard.shape) != (first.dtype, first.shape) for shard in shards):
        raise ValueError(f"{first.name}: the tensor-parallel ranks have shards of different shapes")
    if name.endswith(BY_ROWS):
        return _side_by_side(shards, 0, parts=2 if in_halves else 1)
    if name.endswith(BY_COLUMNS):
        return _side_by_side(shards, 1)
    return whole(first.name, first.dtype, first.shape, _agreed(shards))


def _side_by_side(shards: list[StoredTensor], axis: int, parts: int = 1) -> StoredTensor:
    """Shards joined along an axis. parts: the number of tensors in each shard, stored one after the other."""
    local = shards[0].shape
    if len(local) <= axis or local[axis] % parts:
        raise ValueError(f"{shards[0].name} has shape {list(local)}, which is no part of the whole weight")
    step = local[axis] // parts

    def along_axis(size: int, others: tuple[int, ...]) -> tuple[int, ...]:
        return (*others[:axis], size, *others[axis + 1 :])

    def piece(part: int, rank: int, shard: StoredTensor) -> Piece:
        start, shape = along_axis(part * step, (0,) * len(local)), along_axis(step, local)
        place = along_axis((part * len(shards) + rank) * step, (0,) * len(local))
        return Piece(place, shape, lambda: shard.read_block(start, shape))

    pieces = tuple(piece(part, rank, shard) for part in range(parts) for rank, shard in enumerate(shards))
    return StoredTensor(shards[0].name, shards[0].dtype, along_axis(local[axis] * len(shards), local), pieces)


def _agreed(shards: list[StoredTensor]) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        first = shards[0].read()
        if not all(np.array_equal(first, shard.read()) for shard in shards[1:]):
            raise ValueError(
                f"{shards[0].name} differs between tensor-parallel ranks, which should have equal copies"
            )
        return first

    return read
