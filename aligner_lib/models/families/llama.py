"""Llama 1 to 3, and models with the same structure: TinyLlama, SmolLM2.

Source: Touvron et al. 2023 (arXiv:2302.13971).
"""

from __future__ import annotations

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family, check_activation, read_base, read_rope, write_base
from aligner_lib.models.families.settings import Settings


def read_llama(settings: Settings) -> Architecture:
    """Llama's architecture, or the part of another family that equals Llama's."""
    settings.refuse_flags("attention_bias", "mlp_bias")
    check_activation(settings, "hidden_act", "silu")
    return Architecture(
        **read_base(settings), **read_rope(settings), norm_epsilon=settings.number("rms_norm_eps", 1e-6)
    )


def write_llama(arch: Architecture) -> dict:
    """The inverse of `read_llama`."""
    return {**write_base(arch), "rms_norm_eps": arch.norm_epsilon, "hidden_act": "silu"}


FAMILY = Family("llama", "llama", "Llama", read_llama, write_llama)
