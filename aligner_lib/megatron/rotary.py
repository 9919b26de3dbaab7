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
    scaling, size = _scaling(architecture, slides), architecture.rotary_channels
    base = architecture.local_rotary_base if _is_local(architecture, slides) else architecture.rotary_base
    frequencies = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if scaling is None:
        return frequencies
    lowered = frequencies / scaling.factor
    if scaling.kind == "linear":
        return lowered
    kept = _kept_by_yarn(size // 2, base, scaling) if scaling.kind == "yarn" else _kept(frequencies, scaling)
    return kept * frequencies + (1 - kept) * lowered


def rotary_factor(architecture: Architecture, slides: bool) -> float:
    """The factor of the rotated values of queries and keys. slides: as in `rotary_frequencies`."""
    scaling = _scaling(architecture, slides)
    return 1.0 if scaling is None else scaling.attention_factor


def _is_local(architecture: Architecture, slides: bool) -> bool:
    return slides and architecture.local_rotary_base is not None


def _scaling(architecture: Architecture, slides: bool) -> RopeScaling | None:
    return None if _is_local(architecture, slides) else architecture.rope_scaling


def _kept(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """llama3's kept share of each frequency: 0 for a fully lowered frequency, 1 for an unchanged frequency, [R/2]."""
    turns = frequencies * scaling.original_positions / (2 * math.pi)  # within a text of the first training
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _kept_by_yarn(pairs: int, base: float, scaling: RopeScaling) -> Tensor:
    """yarn's kept share of each frequency, [R/2]: from 1 to 0 between two pairs, with rounded numbers of the pairs."""

    def pair_with(turns: float) -> float:
        return pairs * math.log(scaling.original_positions / (2 * math.pi * turns)) / math.log(base)

    first = max(math.floor(pair_with(scaling.high_frequency_factor)), 0)
    last = min(math.ceil(pair_with(scaling.low_frequency_factor)), 2 * pairs - 1)
    lowered = (torch.arange(pairs, dtype=torch.float32) - first) / max(last - first, 0.001)
    return 1 - lowered.clamp(0, 1)
