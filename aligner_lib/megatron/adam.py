"""Adam's update in one pass over memory, and its moments: offloaded to the CPU during inference, or reset to zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aligner_lib.megatron import cpu

MOMENTS = ("exp_avg", "exp_avg_sq")


def fuse(adam: torch.optim.Optimizer) -> None:
    """Let torch's AdamW update CPU weights in one pass over memory. By default, AdamW makes one pass for each operation.

    With Transformer Engine or Apex installed, Megatron uses their Adam, which is already fused on CUDA.
    """
    for group in adam.param_groups:
        if "fused" in group and all(parameter.device.type == "cpu" for parameter in group["params"]):
            group["fused"] = True


def forget(adam: torch.optim.Optimizer) -> None:
    """Set the moments to zero, as before the first optimizer step."""
    for state, name in _moments(adam):
        state[name].zero_()


def move(adam: torch.optim.Optimizer, device: torch.device) -> None:
    """Move the moments to a device, unless they are already there."""
    for state, name in _moments(adam):
        state[name] = state[name].to(device)


def to_cpu(adam: torch.optim.Optimizer) -> None:
    """Offload the moments to the CPU."""
    move(adam, torch.device("cpu"))


def to_device(adam: torch.optim.Optimizer) -> None:
    """Move the moments back to the training device."""
    move(adam, cpu.DEVICE)


def _moments(adam: torch.optim.Optimizer) -> Iterator[tuple[dict, str]]:
    for group in adam.param_groups:
        for parameter in group["params"]:
            state = adam.state[parameter]
            yield from ((state, name) for name in MOMENTS if name in state)
