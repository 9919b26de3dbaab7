"""A model's whole weights, put together from the blocks of its ranks, one weight at a time, with adapters added.

Blocks travel from CPU to CPU, because the whole weights are for another process, such as an inference server.
"""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from aligner_lib.megatron import parallel
from aligner_lib.megatron.checkpoint import own_blocks
from aligner_lib.models.adapters import A, B
from aligner_lib.models.tensor_store import Block


class WholeWeights:
    """Whole weights by their Megatron names. Every rank creates an instance and reads the same names in the same order."""

    def __init__(self, model):
        self._own = dict(own_blocks(model))
        self._holders: dict[str, list[tuple[int, Block, torch.dtype]]] = defaultdict(list)
        held = [(block, values.dtype) for block, values in self._own.items()]
        for rank, blocks in enumerate(parallel.gather_over_all(held)):
            for block, dtype in blocks:
                self._holders[block.name].append((rank, block, dtype))
        # by the layer's own name: every rank has layers of each name
        self._scales = {
            name.rpartition(".")[2]: layer.adapter_scale
            for name, layer in model.named_modules()
            if hasattr(layer, "adapter_scale")
        }

    @property
    def names(self) -> set[str]:
        """The names of all weights of all ranks, without the adapters."""
        return {name for name in self._holders if name.rpartition(".")[2] not in (A, B)}

    def read(self, name: str) -> Tensor | None:
        """The whole weight in its dtype, on the first rank's CPU; None on all other ranks. A collective operation.

        A weight with an adapter is W + scale · B A, computed in float32. Raises KeyError for a name without a weight in the
        model.
        """
        weight, layer = self._read(name), name.removesuffix(".weight")
        if f"{layer}.{A}" not in self._holders:
            return weight
        a, b = self._read(f"{layer}.{A}"), self._read(f"{layer}.{B}")
        if weight is None:
            return None
        scale = self._scales[layer.rpartition(".")[2]]
        return torch.addmm(weight.float(), b.float(), a.float(), alpha=scale).to(weight.dtype)

    def _read(self, name: str) -> Tensor | None:
        if name not in self._holders:
            raise KeyError(f"the model has no weight {name}")
        _, first, dtype = self._holders[name][0]
        out = torch.empty(first.global_shape, dtype=dtype) if parallel.is_first_rank() else None
        for rank, block, dtype in self._holders[name]:
            part = _on_the_first_rank(self._own.get(block), rank, block, dtype)
            if out is not None:
                ranges = zip(block.offset, block.shape)
                out[tuple(slice(start, start + size) for start, size in ranges)] = part
        return out


def _on_the_first_rank(part: Tensor | None, rank: int, block: Block, dtype: torch.dtype) -> Tensor | None:
    """Move a block from `rank` to the first rank's CPU. part: the block's values on `rank`; None on all other ranks."""
    if rank == 0:
        return None if part is None else part.cpu()
    if part is not None:
        dist.send(part.cpu().contiguous(), dst=0)
    elif parallel.is_first_rank():
        part = torch.empty(block.shape, dtype=dtype)
        dist.recv(part, src=rank)
        return part
    return None
