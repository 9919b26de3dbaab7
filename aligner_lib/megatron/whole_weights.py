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
    holders: dict[str, list[tuple[int, Block]]] = defaultdict(list)
    for rank, blocks in enumerate(parallel.gather_over_all(list(own))):
        for block in blocks:
            holders[block.name].append((rank, block))
    dtype = next(model.parameters()).dtype

    def whole(name: str) -> Tensor | None:
        if name not in holders:
            raise KeyError(f"the model has no weight {name}")
        first = parallel.is_first_rank()
        out = torch.empty(holders[name][0][1].global_shape, dtype=dtype) if first else None
        for rank, block in holders[name]:
            part = own[block].cpu().contiguous() if rank == parallel.rank() else None
            if rank != 0 and part is not None:
                dist.send(part, dst=0)
            if first:
                if part is None:
                    part = torch.empty(block.shape, dtype=dtype)
                    dist.recv(part, src=rank)
                ranges = zip(block.offset, block.shape)
                out[tuple(slice(start, start + size) for start, size in ranges)] = part
        return out

    return whole
