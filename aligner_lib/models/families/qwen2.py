"""Qwen 2 and 2.5: Llama with biases on query, key and value, and optionally a window in the upper layers.

Source: Yang et al. 2024 (arXiv:2407.10671).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family, read_window, write_window
from aligner_lib.models.families.llama import read_llama, write_llama
from aligner_lib.models.families.settings import Settings

DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28}


def from_hf(settings: Settings) -> Architecture:
    return replace(read_qwen(settings), family="qwen2", qkv_bias=True)


def read_qwen(settings: Settings) -> Architecture:
    """Llama's architecture, with the sliding window of Qwen's upper layers."""
    settings = settings.with_defaults(**DEFAULTS)
    arch = read_llama(settings)
    window = settings.count("sliding_window", None) if settings.flag("use_sliding_window") else None
    full = settings.number("max_window_layers")  # the number of layers before the first layer with a window
    layers = (layer for layer in range(arch.num_layers) if layer >= full)
    return replace(arch, **read_window(settings, window, layers))


def write_qwen(arch: Architecture) -> dict:
    window = {"use_sliding_window": arch.sliding_window is not None, **write_window(arch)}
    return {**write_llama(arch), **window}


FAMILY = Family("qwen2", "qwen2", "Qwen2", from_hf, write_qwen)
