"""Adam's moments: kept off the device while nothing is trained, and forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aligner_lib.megatron.cpu import DEVICE

MOMENTS = ("exp_avg", "exp_avg_sq")


def forget(adam: torch.optim.Optimizer) -> None:
    """Moments of zero, as before the first step."""
    for state, name in _moments(adam):
        state[name].zero_()


def move(adam: torch.optim.Optimizer, device: torch.device) -> None:
    """Put the moments on a device. On a machine without CUDA they are on the CPU already, and nothing happens."""
    for state, name in _moments(adam):
        state[name] = state[name].to(device)


def to_cpu(adam: torch.optim.Optimizer) -> None:
    move(adam, torch.device("cpu"))


def to_device(adam: torch.optim.Optimizer) -> None:
    move(adam, DEVICE)


def _moments(adam: torch.optim.Optimizer) -> Iterator[tuple[dict, str]]:
    for group in adam.param_groups:
        for parameter in group["params"]:
            state = adam.state[parameter]
            yield from ((state, name) for name in MOMENTS if name in state)
