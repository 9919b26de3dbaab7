"""Gemma 2: norms around attention and MLP, GELU gates, scaled embeddings, soft caps, a window in every second layer.

Source: Gemma Team 2024 (arXiv:2408.00118).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import (
    Family,
    check_activation,
    read_base,
    read_rope,
    read_window,
    write_base,
    write_window,
)
from aligner_lib.models.families.settings import Settings

DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
NORMS = {
    "mlp": "pre_feedforward_layernorm",
    "after_attention": "post_attention_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}


def from_hf(settings: Settings) -> Architecture:
    arch = read_gemma(settings.with_defaults(**CAPS))
    sliding = range(0, arch.num_layers, 2)
    window = settings.with_defaults(**DEFAULTS).count("sliding_window", None)
    return replace(arch, family="gemma2", **read_rope(settings), **read_window(settings, window, sliding))


def read_gemma(settings: Settings) -> Architecture:
    """The common part of Gemma 2 and 3: everything except positions and windows."""
    settings = settings.with_defaults(**DEFAULTS)
    settings.refuse_flags("attention_bias", "use_bidirectional_attention")
    check_activation(settings, "hidden_activation", "gelu_pytorch_tanh")
    base = read_base(settings)
    return Architecture(
        **base,
        norm_epsilon=settings.number("rms_norm_eps", 1e-6),
        zero_centered_norm=True,
        post_norms=True,
        activation="geglu",
        embedding_scale=base["hidden_size"] ** 0.5,
        attention_scale=settings.count("query_pre_attn_scalar") ** -0.5,
        attention_softcap=settings.number("attn_logit_softcapping", None),
        logits_softcap=settings.number("final_logit_softcapping", None),
    )


def write_gemma(arch: Architecture) -> dict:
    return {
        **write_base(arch),
        **write_window(arch),
        "rms_norm_eps": arch.norm_epsilon,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round((arch.attention_scale or arch.kv_channels**-0.5) ** -2),
        "attn_logit_softcapping": arch.attention_softcap,
        "final_logit_softcapping": arch.logits_softcap,
    }


FAMILY = Family("gemma2", "gemma2", "Gemma2", from_hf, write_gemma, NORMS)
