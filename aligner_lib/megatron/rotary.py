"""The frequencies of rotary positions, with the scalings that lower the frequencies for longer texts.

R/2: pairs of values in the rotated part of a head
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aligner_lib.models.architecture import Architecture, RopeScaling


def rotary_frequencies(architecture: Architecture, slides: bool) -> Tensor:
    """The angle by which each pair of values turns from one token to the next: float32 [R/2], in radians.

    slides: whether the layer has the sliding window; such a layer may have its own base. Source: Su et al. 2021
    (arXiv:2104.09864).
    """
    local = slides and architecture.local_rotary_base is not None
    base = architecture.local_rotary_base if local else architecture.rotary_base
    size = architecture.rotary_channels
    frequencies = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if local or architecture.rope_scaling is None:
        return frequencies
    return _scaled(frequencies, architecture.rope_scaling)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    lowered = frequencies / scaling.factor
    if scaling.kind == "linear":
        return lowered
    # within the length of the first training's texts
    turns = frequencies * scaling.original_positions / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0: fully lowered, 1: unchanged
    return kept * frequencies + (1 - kept) * lowered
