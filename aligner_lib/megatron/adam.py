"""Adam's update in one pass over memory; its moments, offloaded to the CPU during inference, or reset to zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aligner_lib.megatron import cpu

MOMENTS = ("exp_avg", "exp_avg_sq")


def fuse(adam: torch.optim.Optimizer) -> None:
    """Let torch's AdamW update weights on the CPU in one pass over memory; by itself it takes one for each operation.

    Those of Transformer Engine and Apex, which Megatron takes where they are installed, do so on CUDA.
    """
    for group in adam.param_groups:
        if "fused" in group and all(parameter.device.type == "cpu" for parameter in group["params"]):
            group["fused"] = True


def forget(adam: torch.optim.Optimizer) -> None:
    """Set the moments to zero, as before the first optimizer step."""
    for state, name in _moments(adam):
        state[name].zero_()


def move(adam: torch.optim.Optimizer, device: torch.device) -> None:
    """Move the moments to a device. Where that is the one that they are on, nothing happens."""
    for state, name in _moments(adam):
        state[name] = state[name].to(device)


def to_cpu(adam: torch.optim.Optimizer) -> None:
    """Offload the moments to the CPU."""
    move(adam, torch.device("cpu"))


def to_device(adam: torch.optim.Optimizer) -> None:
    """Move the moments back to the device that trains."""
    move(adam, cpu.DEVICE)


def _moments(adam: torch.optim.Optimizer) -> Iterator[tuple[dict, str]]:
    for group in adam.param_groups:
        for parameter in group["params"]:
            state = adam.state[parameter]
            yield from ((state, name) for name in MOMENTS if name in state)
