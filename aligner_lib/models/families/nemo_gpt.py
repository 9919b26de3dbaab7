"""NeMo's GPT, such as GPT-2B-001: LayerNorm weights stored as their distance from 1 (layernorm1p), half of each head rotated.

transformers has a class for models whose MLP uses a squared ReLU (Nemotron; Parmar et al. 2024, arXiv:2402.16819), but no class
for the SwiGLU of GPT-2B-001. Models with SwiGLU are imported from .nemo archives and exported to .nemo archives.
"""

from __future__ import annotations

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family, check_activation, read_base, read_rope, write_base
from aligner_lib.models.families.settings import Settings


def from_hf(settings: Settings) -> Architecture:
    settings.refuse_flags("attention_bias", "mlp_bias")
    check_activation(settings, "hidden_act", "relu2")
    return Architecture(
        **read_base(settings),
        **read_rope(settings, fraction=0.5),
        family="nemo_gpt",
        normalization="layer",
        zero_centered_norm=True,
        norm_epsilon=settings.number("norm_eps", 1e-5),
        activation="squared_relu",
    )


def to_hf(arch: Architecture) -> dict:
    if arch.activation != "squared_relu":
        raise ValueError(
            f"transformers has no class for a model with layernorm1p and {arch.activation}, such as GPT-2B-001: "
            "export with --to nemo"
        )
    own = {
        "norm_eps": arch.norm_epsilon,
        "hidden_act": "relu2",
        "partial_rotary_factor": arch.rotary_fraction,
    }
    return {**write_base(arch), **own}


FAMILY = Family("nemo_gpt", "nemotron", "Nemotron", from_hf, to_hf)
