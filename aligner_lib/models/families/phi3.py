"""Phi-3 and Phi-4: Mistral, with stacked matrices.

The models of 128 thousand tokens and Phi-4-mini have longrope, which is refused.

Source: Abdin et al. 2024 (arXiv:2404.14219).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family
from aligner_lib.models.families.mistral import read_mistral, write_mistral
from aligner_lib.models.families.settings import Settings

DEFAULTS = {"num_key_value_heads": None, "sliding_window": None, "rms_norm_eps": 1e-5}


def from_hf(settings: Settings) -> Architecture:
    arch = read_mistral(settings.with_defaults(**DEFAULTS))
    if arch.rope_scaling:
        raise settings.refuse(
            f"rope_type is {arch.rope_scaling.kind!r}, but transformers' Phi-3 has only 'default', and 'longrope', which the "
            "importer does not support ('yarn' is an old name of longrope there). Take Phi-3-mini-4k, or Phi-4 with 14 billion "
            "parameters"
        )
    return replace(arch, family="phi3")


FAMILY = Family("phi3", "phi3", "Phi3", from_hf, write_mistral, qkv_fusion="stacked_qkv")
