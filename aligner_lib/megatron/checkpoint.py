"""Weights and optimizer state of a Megatron model, in a store readable under any other parallelism.

Megatron's ShardedTensors describe which block of which global tensor a parameter is. `aligner_lib.models.tensor_store` writes
the blocks in this process. Megatron's own writer spawns processes, which costs seconds for each checkpoint on a CPU.

A trained bf16 model is stored as its float32 masters (`aligner_lib.megatron.masters`), so a second training can continue from
the first without rounding.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from aligner_lib.errors import ConfigError
from aligner_lib.megatron import cpu
from aligner_lib.megatron.adam import MOMENTS
from aligner_lib.megatron.masters import HALF_STEP, assign, between_the_steps, master_of
from aligner_lib.models.adapters import A, B, open_weights
from aligner_lib.models.tensor_store import Block, StoreReader, StoreWriter

cpu.prepare()

from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory, is_main_replica


def save_weights(model, writer: StoreWriter, trained_only: bool) -> None:
    """Write this rank's share of the weights.

    For a weight with a float32 master, the rank writes its own part, which it updates. Other weights are written in whole
    blocks. Of several ranks with the same block (data parallel, tied embeddings), a single rank writes the block.

    trained_only: leave out the frozen weights, because a checkpoint of adapters refers to its base for them.
    """
    for parameter, shards in _shards(model):
        if trained_only and not parameter.requires_grad:
            continue
        master = master_of(parameter)
        if master is not None:
            _write_part(writer, shards, master.values, master.first, master.last)
            continue
        for block, values in _held_blocks(parameter, shards):
            writer.add(block, values)


def own_blocks(model) -> Iterator[tuple[Block, Tensor]]:
    """This rank's blocks of the model's parameters, with their values in the parameters' dtype.

    If several ranks hold the same block, only one rank yields the block.
    """
    for parameter, shards in _shards(model):
        yield from _held_blocks(parameter, shards)


def load_weights(model, folder: Path, new_head: bool = False) -> None:
    """Fill the model from a model folder written under any parallelism. Adapters of the model keep their values.

    new_head: the folder holds a language model, and the model has a scalar head, which keeps its values (zero). Raises
    FileNotFoundError when there are no weights, ValueError for weights of another architecture and for weights without a
    parameter in the model.
    """

    def stays(key: str) -> bool:
        return _is_adapter(key) or (new_head and key.startswith("value_head."))

    _fill(model, open_weights(folder), stays, unneeded={"output_layer.weight"} if new_head else set())


def load_trained(model, store: StoreReader, head_may_stay: bool = False) -> None:
    """Fill the trained parameters of a model with adapters: the adapters and a scalar head. Raises as `load_weights`.

    head_may_stay: the scalar head keeps its values if the store has no scalar head, for example for a language model's
    adapters.
    """
    stay = {
        shard.key
        for parameter, shards in _shards(model)
        for shard, _, _ in shards
        if not parameter.requires_grad
    }
    if head_may_stay and "value_head.weight" not in store:
        stay |= {"value_head.weight", "value_head.bias"}
    _fill(model, store, stays=stay.__contains__)


def _fill(
    model, store: StoreReader, stays: Callable[[str], bool], unneeded: Collection[str] = frozenset()
) -> None:
    """Read every tensor of the model from the store, in float32 where the parameter has a master.

    stays: whether a tensor of the model is skipped; unneeded: the names of tensors in the store that may stay unread.
    """
    used = set()
    for parameter, shards in _shards(model):
        for shard, start, _ in shards:
            if stays(shard.key):
                continue
            used.add(shard.key)
            if shard.key not in store:
                raise ValueError(
                    f"{store.folder} has no {shard.key}: the checkpoint is of another architecture"
                )
            values = store.read(_block(shard))
            if values.dtype == torch.bfloat16 and master_of(parameter) is not None:
                values = _drawn_masters(shard, values)
            assign(parameter, values.float(), start)
    unused = [name for name in store.names() if name not in used and name not in unneeded]
    if unused and _is_alone(model):
        raise ValueError(f"{store.folder} has weights without a place in the model: {', '.join(unused[:5])}")


def _drawn_masters(shard: ShardedTensor, stored: Tensor) -> Tensor:
    """Masters of a block stored in bf16. A weight gets the same master in every run and under every parallelism."""
    generator = torch.Generator().manual_seed(zlib.crc32(shard.key.encode()))
    offsets = torch.randint(
        1 - HALF_STEP, HALF_STEP, shard.global_shape, generator=generator, dtype=torch.int16
    )
    place = tuple(slice(start, start + size) for start, size in zip(shard.global_offset, shard.local_shape))
    return between_the_steps(stored, offsets[place])


def save_optimizer(model, optimizer, writer: StoreWriter) -> None:
    """Write this rank's shard of Adam's moments. `save_weights` writes the weights themselves."""
    for shards, state, first, last in _optimizer_shards(model, optimizer):
        for moment in MOMENTS:
            _write_part(writer, shards, state[moment], first, last, f"{moment}.")


def load_optimizer(model, optimizer, folder: Path) -> None:
    """Fill this rank's shard of Adam's moments from a store written under any parallelism.

    Raises FileNotFoundError when there is no store, ConfigError when the store has no moments of a weight that is trained now,
    ValueError when a tensor has another shape.
    """
    store = StoreReader(folder)
    trained = list(_optimizer_shards(model, optimizer))
    unknown = [shards[0][0].key for shards, *_ in trained if f"{MOMENTS[0]}.{shards[0][0].key}" not in store]
    if unknown:
        raise ConfigError(
            f"{folder} has no optimizer state of {len(unknown)} weights in training, such as {unknown[0]}: set "
            "num_layers_unfrozen to its original value, or begin anew with exp_manager.resume_if_exists=False"
        )
    for shards, state, first, last in trained:
        for moment in MOMENTS:
            whole = torch.cat([store.read(_block(shard, f"{moment}.")).flatten() for shard, _, _ in shards])
            state[moment].view(-1).copy_(whole[first:last])


def _shards(model) -> Iterator[tuple[Tensor, list[tuple[ShardedTensor, int, int]]]]:
    """Each parameter with its blocks: (block, start, end), where start and end are the block's range in the flattened
    parameter.

    Most parameters are one block. Under tensor parallelism, SwiGLU's first projection is two blocks: the rank's gate and up.
    """
    for entry in model.sharded_state_dict().values():
        if isinstance(entry, ShardedTensorFactory):
            built = entry.build()
            parts = list(built.values()) if isinstance(built, dict) else list(built)
        elif isinstance(entry, ShardedTensor):
            parts = [entry]
        else:
            continue  # Transformer Engine's extra state: empty without fp8
        ends = torch.tensor([math.prod(part.local_shape) for part in parts]).cumsum(0).tolist()
        assert ends[-1] == entry.data.numel(), f"{entry.key}: its blocks don't add up"
        yield entry.data, [(part, start, end) for part, start, end in zip(parts, [0, *ends], ends)]


def _held_blocks(
    parameter: Tensor, shards: list[tuple[ShardedTensor, int, int]]
) -> Iterator[tuple[Block, Tensor]]:
    """The blocks of a parameter with their values. If several ranks hold a block, only the block's main rank yields it."""
    for shard, start, end in shards:
        if is_main_replica(shard.replica_id):
            yield _block(shard), parameter.detach().flatten()[start:end].view(shard.local_shape)


def _write_part(
    writer: StoreWriter,
    shards: list[tuple[ShardedTensor, int, int]],
    values: Tensor,
    first: int,
    last: int,
    prefix: str = "",
) -> None:
    """Write [first, last) of a flattened parameter's values, or of a tensor of the same shape, such as a moment."""
    for shard, start, end in shards:
        begin, stop = max(start, first), min(end, last)
        if begin < stop and _is_tp_main(shard):
            part = values.flatten()[begin - first : stop - first]
            if (begin, stop) == (start, end):
                writer.add(_block(shard, prefix), part.view(shard.local_shape))
            else:
                writer.add(_block(shard, prefix, flat=(begin - start, stop - start)), part)


def _optimizer_shards(model, optimizer) -> Iterator[tuple[list, dict[str, Tensor], int, int]]:
    """Each trained parameter's blocks, Adam's state, and the range [first, last) that this data-parallel rank updates.

    The range indexes the flattened parameter. Adam's state covers the same range.
    """
    # Megatron's own map from a parameter to its state is wrong if one group has parameters of two dtypes
    mains = {
        parameter: main
        for parameters, shards in (
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
        )
        for parameter, main in zip(chain(*parameters), chain(*shards), strict=True)
    }
    seen = set()
    for parameter, shards in _shards(model):
        if parameter in mains and parameter not in seen:
            seen.add(parameter)
            owned = optimizer._get_model_param_range_map(parameter)["param"]
            yield shards, optimizer.optimizer.state[mains[parameter]], owned.start, owned.end


def _block(shard: ShardedTensor, prefix: str = "", flat: tuple[int, int] | None = None) -> Block:
    return Block(
        prefix + shard.key,
        tuple(shard.global_shape),
        tuple(shard.global_offset),
        tuple(shard.local_shape),
        flat,
    )


def _is_tp_main(shard: ShardedTensor) -> bool:
    """Whether this rank writes the block.

    Data-parallel ranks own different parts of a parameter, so the last number of the id, the data-parallel replica, is ignored.
    """
    return all(number == 0 for number in shard.replica_id[:-1])


def _is_adapter(key: str) -> bool:
    return key.rpartition(".")[2] in (A, B)


def _is_alone(model) -> bool:
    return model.pre_process and model.post_process
