"""Weights and optimizer state of a Megatron model, in a store that any other parallelism can read.

Megatron's ShardedTensors say which block of which global tensor each parameter is.
`aligner_lib.models.tensor_store` writes the blocks in this process. Megatron's own writer spawns processes
for that, which costs seconds for each checkpoint on a CPU.

The stored weights of a bf16 model that is trained are its float32 masters (`aligner_lib.megatron.masters`), so that one
training can follow on another without rounding in between.
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
    """Write this rank's share of the weights: of a weight with a float32 master, the part that the rank updates; of other
    weights whole blocks, each from one of the ranks that hold it (data parallel, tied embeddings).

    trained_only: leave out the weights that are not trained, since a checkpoint of adapters refers to them.
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
    """The blocks of the model's parameters that this rank holds, with their values in the parameters' dtype.

    Where several ranks hold the same block, one of them yields it.
    """
    for parameter, shards in _shards(model):
        yield from _held_blocks(parameter, shards)


def load_weights(model, folder: Path, new_head: bool = False) -> None:
    """Fill the model from a model folder written under any parallelism; its adapters, if it has any, stay as they are.

    new_head: the folder is a language model's and the model is a scalar one, whose head stays as it is (zero).
    Raises FileNotFoundError when there are no weights, ValueError for those of another architecture or with
    weights that the model has no parameter for.
    """

    def stays(key: str) -> bool:
        return _is_adapter(key) or (new_head and key.startswith("value_head."))

    _fill(model, open_weights(folder), stays, unneeded={"output_layer.weight"} if new_head else set())


def load_trained(model, store: StoreReader, head_may_stay: bool = False) -> None:
    """Fill what trains of a model with adapters: those, and a scalar head. Raises as `load_weights`.

    head_may_stay: where the store has none, as that of a language model's adapters.
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

    stays: which of the model's tensors are not read. unneeded: which of the store's may be left over.
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
        raise ValueError(
            f"{store.folder} has weights that the model has no place for: {', '.join(unused[:5])}"
        )


def _drawn_masters(shard: ShardedTensor, stored: Tensor) -> Tensor:
    """Masters of a block that is stored in bf16; a weight has the same one in every run and in every layout."""
    generator = torch.Generator().manual_seed(zlib.crc32(shard.key.encode()))
    offsets = torch.randint(
        1 - HALF_STEP, HALF_STEP, shard.global_shape, generator=generator, dtype=torch.int16
    )
    place = tuple(slice(start, start + size) for start, size in zip(shard.global_offset, shard.local_shape))
    return between_the_steps(stored, offsets[place])


def save_optimizer(model, optimizer, writer: StoreWriter) -> None:
    """Write this rank's shard of Adam's moments. The weights that they belong to are written by `save_weights`."""
    for shards, state, first, last in _optimizer_shards(model, optimizer):
        for moment in MOMENTS:
            _write_part(writer, shards, state[moment], first, last, f"{moment}.")


def load_optimizer(model, optimizer, folder: Path) -> None:
    """Fill this rank's shard of Adam's moments from a store written under any parallelism.

    Raises FileNotFoundError when there is no store, ConfigError when it is of fewer weights than are trained now,
    ValueError when a tensor has another shape.
    """
    store = StoreReader(folder)
    trained = list(_optimizer_shards(model, optimizer))
    unknown = [shards[0][0].key for shards, *_ in trained if f"{MOMENTS[0]}.{shards[0][0].key}" not in store]
    if unknown:
        raise ConfigError(
            f"{folder} has no optimizer state of {len(unknown)} weights that are trained now, such as {unknown[0]}: set "
            "num_layers_unfrozen as the run began with it, or begin anew with exp_manager.resume_if_exists=False"
        )
    for shards, state, first, last in trained:
        for moment in MOMENTS:
            whole = torch.cat([store.read(_block(shard, f"{moment}.")).flatten() for shard, _, _ in shards])
            state[moment].view(-1).copy_(whole[first:last])


def _shards(model) -> Iterator[tuple[Tensor, list[tuple[ShardedTensor, int, int]]]]:
    """Each parameter with its blocks: (block, start, end), its range in the flattened parameter.

    Most parameters are one block. SwiGLU's first projection is two under tensor parallelism: a rank's gate
    and up.
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
    """The blocks of a parameter with their values, on the one rank that stands for all that hold them."""
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
    """Write [first, last) of a flattened parameter's values, or of what belongs to them, such as a moment."""
    for shard, start, end in shards:
        begin, stop = max(start, first), min(end, last)
        if begin < stop and _is_tp_main(shard):
            part = values.flatten()[begin - first : stop - first]
            if (begin, stop) == (start, end):
                writer.add(_block(shard, prefix), part.view(shard.local_shape))
            else:
                writer.add(_block(shard, prefix, flat=(begin - start, stop - start)), part)


def _optimizer_shards(model, optimizer) -> Iterator[tuple[list, dict[str, Tensor], int, int]]:
    """Of each trained parameter its blocks, Adam's state, and which part of it this data-parallel rank updates: [first,
    last) of the flattened values, to which the state belongs."""
    # Megatron's own map from a parameter to its state is wrong where one group has parameters of two dtypes
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

    Data-parallel ranks own different parts of a parameter, so their replica number is ignored.
    """
    return all(number == 0 for number in shard.replica_id[:-1])


def _is_adapter(key: str) -> bool:
    return key.rpartition(".")[2] in (A, B)


def _is_alone(model) -> bool:
    return model.pre_process and model.post_process
