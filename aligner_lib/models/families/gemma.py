"""Gemma 1: GELU gates, scaled embeddings, and norms stored as weight − 1.

Source: Gemma Team 2024 (arXiv:2403.08295).
"""

from __future__ import annotations

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family, check_activation, read_base, read_rope, write_base
from aligner_lib.models.families.settings import Settings

DEFAULTS = {"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True}


def from_hf(settings: Settings) -> Architecture:
    settings = settings.with_defaults(**DEFAULTS)
    settings.refuse_flags("attention_bias", "use_bidirectional_attention")
    # the first releases say gelu, but the models were trained with the tanh approximation
    check_activation(settings, "hidden_act", "gelu_pytorch_tanh", "gelu")
    base = read_base(settings)
    return Architecture(
        **base,
        **read_rope(settings),
        family="gemma",
        norm_epsilon=settings.number("rms_norm_eps", 1e-6),
        zero_centered_norm=True,
        activation="geglu",
        embedding_scale=base["hidden_size"] ** 0.5,
    )


def to_hf(arch: Architecture) -> dict:
    return {**write_base(arch), "rms_norm_eps": arch.norm_epsilon, "hidden_act": "gelu_pytorch_tanh"}


FAMILY = Family("gemma", "gemma", "Gemma", from_hf, to_hf)
