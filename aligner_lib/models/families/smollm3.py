"""SmolLM3: Llama without rotary positions in every fourth layer (NoPE; Yang et al. 2025, arXiv:2501.18795)."""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import SLIDING, Family, read_window, write_window
from aligner_lib.models.families.llama import read_llama, write_llama
from aligner_lib.models.families.settings import Settings

DEFAULTS = {"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True}


def from_hf(settings: Settings) -> Architecture:
    settings = settings.with_defaults(**DEFAULTS)
    arch = read_llama(settings)
    # 1: with rotary positions, despite the setting's name
    rotated = settings.listed("no_rope_layers", arch.num_layers)
    every = settings.count("no_rope_layer_interval", 4)
    rotated = rotated or [(layer + 1) % every for layer in range(arch.num_layers)]
    nope = tuple(layer for layer in range(arch.num_layers) if not rotated[layer])
    window = settings.count("sliding_window", None) if settings.flag("use_sliding_window") else None
    if window is None and SLIDING in (settings.listed("layer_types", arch.num_layers) or []):
        raise settings.refuse(
            f"layer_types has {SLIDING}, which needs use_sliding_window true and a sliding_window in smollm3: set both, or write "
            "full_attention"
        )
    return replace(arch, family="smollm3", nope_layers=nope, **read_window(settings, window, nope))


def to_hf(arch: Architecture) -> dict:
    rotated = [int(layer not in arch.nope_layers) for layer in range(arch.num_layers)]
    window = {"use_sliding_window": arch.sliding_window is not None, **write_window(arch)}
    return {**write_llama(arch), "no_rope_layers": rotated, **window}


FAMILY = Family("smollm3", "smollm3", "SmolLM3", from_hf, to_hf)
