"""Float32 master weights, which the optimizer updates if a model's parameters are bf16.

bf16 has eight significant bits. An update smaller than half a step of the bf16 grid changes no parameter, so the optimizer adds
the update to a float32 master. After each step, the parameter is rounded from its master. A master must not begin on the bf16
grid, because every weight would have to travel half a step before its parameter changes. Hence masters are read in float32. If
the stored weight itself is bf16, `between_the_steps` places the master within the interval that rounds to the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

HALF_STEP = 1 << 15  # half a step of the bf16 grid, counted in float32 numbers: a float32 has 16 more bits


@dataclass(frozen=True)
class Master:
    """The part of a parameter's float32 master updated by this data-parallel rank."""

    values: Tensor  # float32 [last - first]
    first: int  # the part's range in the flattened parameter
    last: int


def attach(module: torch.nn.Module, optimizer) -> None:
    """Give each bf16 parameter trained by Megatron's distributed optimizer its Master, as the attribute `master`."""
    for parameter in module.parameters():
        # this rank's part stays empty if other ranks update every part of the parameter
        if parameter.requires_grad and parameter.dtype == torch.bfloat16:
            parameter.master = Master(torch.empty(0, device=parameter.device), 0, 0)
    groups = zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True)
    for parameter, values in chain.from_iterable(zip(*group, strict=True) for group in groups):
        owned = optimizer._get_model_param_range_map(parameter)["param"]
        parameter.master = Master(values.data, owned.start, owned.end)


def master_of(parameter: Tensor) -> Master | None:
    """The parameter's Master; None for a float32 parameter and for a frozen parameter."""
    return getattr(parameter, "master", None)


def assign(parameter: Tensor, values: Tensor, start: int = 0) -> None:
    """Set a part of a parameter, rounded to the parameter's dtype, and of its master, unrounded.

    values: float32, of any shape; start: the first value's index in the flattened parameter.
    """
    values, end = values.detach().flatten(), start + values.numel()
    parameter.data.view(-1)[start:end] = values
    master = master_of(parameter)
    if master is not None:
        begin, stop = max(start, master.first), min(end, master.last)
        if begin < stop:
            master.values[begin - master.first : stop - master.first] = values[begin - start : stop - start]


def between_the_steps(values: Tensor, offsets: Tensor) -> Tensor:
    """Shift each value by `offsets` steps of the float32 grid: bf16 → float32, the same shape.

    offsets: integers above -HALF_STEP and below HALF_STEP, so every result rounds back to the value. With uniform offsets, an
    update visibly changes a share of the weights equal to the ratio of the update to a step of the bf16 grid. Hence the
    parameters follow their masters on average from the first step on. 0 stays 0.
    """
    bits = values.float().view(torch.int32) + offsets.int()
    return torch.where(values == 0, 0.0, bits.view(torch.float32))
