"""Float32 master weights: what the optimizer updates where a model's parameters are bf16.

bf16 has eight significant bits. An update below half a step of that grid changes no parameter, so the optimizer adds it
to a float32 master, from which the parameter is rounded after each step. A master must not begin on the bf16 grid: from
there, every weight would have to travel half a step before any of it shows. Hence masters are read in float32, and where
the stored weight itself is bf16, `between_the_steps` places its master within the interval that rounds to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

HALF_STEP = 1 << 15  # of bf16's grid, counted in float32 numbers: a float32 has 16 bits more


@dataclass(frozen=True)
class Master:
    """The part of a parameter's master that this data-parallel rank updates."""

    values: Tensor  # float32 [last - first]
    first: int  # the part's range in the flattened parameter
    last: int


def attach(module: torch.nn.Module, optimizer) -> None:
    """Give each bf16 parameter that Megatron's distributed optimizer trains its Master, as the attribute `master`."""
    for parameter in module.parameters():
        if (
            parameter.requires_grad and parameter.dtype == torch.bfloat16
        ):  # of some, other ranks update every part
            parameter.master = Master(torch.empty(0, device=parameter.device), 0, 0)
    groups = zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
    for parameter, values in chain.from_iterable(zip(*group, strict=True) for group in groups):
        owned = optimizer._get_model_param_range_map(parameter)["param"]
        parameter.master = Master(values.data, owned.start, owned.end)


def master_of(parameter: Tensor) -> Master | None:
    """The parameter's Master; None for a float32 parameter and for one that is not trained."""
    return getattr(parameter, "master", None)


def assign(parameter: Tensor, values: Tensor, start: int = 0) -> None:
    """Set a part of a parameter, which rounds to its dtype, and of its master, which does not.

    values: float32, of any shape; start: where they begin in the flattened parameter.
    """
    values, end = values.detach().flatten(), start + values.numel()
    parameter.data.view(-1)[start:end] = values
    master = master_of(parameter)
    if master is not None:
        begin, stop = max(start, master.first), min(end, master.last)
        if begin < stop:
            master.values[begin - master.first : stop - master.first] = values[begin - start : stop - start]


def between_the_steps(values: Tensor, offsets: Tensor) -> Tensor:
    """The float32 number that lies `offsets` float32 numbers away from each value: bf16 → float32, the same shape.

    offsets: integers beyond -HALF_STEP and below HALF_STEP; all these numbers round back to the value. With uniform
    offsets, the part of the weights that an update changes visibly is as large as the update is beside the grid's step, so
    the parameters follow their masters on average from the first step on. 0 stays 0.
    """
    bits = values.float().view(torch.int32) + offsets.int()
    return torch.where(values == 0, 0.0, bits.view(torch.float32))
