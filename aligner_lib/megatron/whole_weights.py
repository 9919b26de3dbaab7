"""A model's weights put together from the blocks that its ranks hold, one weight at a time.

Blocks travel from CPU to CPU: what is put together is for another process, such as an inference server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from aligner_lib.megatron import parallel
from aligner_lib.megatron.checkpoint import own_blocks
from aligner_lib.models.tensor_store import Block


def whole_weights(model) -> Callable[[str], Tensor | None]:
    """A function from a weight's name in Megatron to the whole weight, on the first rank's CPU in the model's dtype.

    It gives None on all other ranks. Every rank makes it, and calls it for the same names in the same order: each call is
    a collective operation. Raises KeyError for a name that the model has not.
    """
    own = dict(own_blocks(model))
    holders: dict[str, list[tuple[int, Block, torch.dtype]]] = defaultdict(list)
    held = [(block, values.dtype) for block, values in own.items()]
    for rank, blocks in enumerate(parallel.gather_over_all(held)):
        for block, dtype in blocks:
            holders[block.name].append((rank, block, dtype))

    def whole(name: str) -> Tensor | None:
        if name not in holders:
            raise KeyError(f"the model has no weight {name}")
        _, first, dtype = holders[name][0]
        out = torch.empty(first.global_shape, dtype=dtype) if parallel.is_first_rank() else None
        for rank, block, dtype in holders[name]:
            part = _on_the_first_rank(own.get(block), rank, block, dtype)
            if out is not None:
                ranges = zip(block.offset, block.shape)
                out[tuple(slice(start, start + size) for start, size in ranges)] = part
        return out

    return whole


def _on_the_first_rank(part: Tensor | None, rank: int, block: Block, dtype: torch.dtype) -> Tensor | None:
    """A block that `rank` holds, on the CPU. part: its values there; None on all other ranks."""
    if rank == 0:
        return None if part is None else part.cpu()
    if part is not None:
        dist.send(part.cpu().contiguous(), dst=0)
    elif parallel.is_first_rank():
        part = torch.empty(block.shape, dtype=dtype)
        dist.recv(part, src=rank)
        return part
    return None
