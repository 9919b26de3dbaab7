"""GPT-NeoX, such as Pythia: attention and MLP side by side, biases everywhere, LayerNorm, a part of each head rotated.

The activation is GELU; GPT-NeoX-20B has its tanh approximation.

Source: Black et al. 2022 (arXiv:2204.06745); Pythia: Biderman et al. 2023 (arXiv:2304.01373).
"""

from __future__ import annotations

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family, check_activation, read_base, read_rope, write_base
from aligner_lib.models.families.settings import Settings

# parts of the names of weights, by the part's name in Llama
NAMES = {
    **{"model.embed_tokens": "gpt_neox.embed_in", "model.layers": "gpt_neox.layers"},
    **{"model.norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out"},
    **{"self_attn.qkv_proj": "attention.query_key_value", "self_attn.o_proj": "attention.dense"},
    **{"mlp.up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h"},
}
# hidden_act → Architecture.activation. Of several names of a function, to_hf writes the first: gelu_fast is GPT-NeoX-20B's.
ACTIVATIONS = {
    "gelu": "gelu",
    **dict.fromkeys(("gelu_fast", "gelu_new", "gelu_pytorch_tanh"), "gelu_tanh"),
}


def from_hf(settings: Settings) -> Architecture:
    settings = settings.with_defaults(attention_bias=True, use_parallel_residual=True)
    if not settings.flag("attention_bias"):
        raise settings.refuse(
            "attention_bias is false, but the importer reads only GPT-NeoX with biases, as Pythia"
        )
    check_activation(settings, "hidden_act", *ACTIVATIONS)
    # transformers, too, ignores rope_theta and partial_rotary_factor outside of a section
    return Architecture(
        **read_base(settings),
        **read_rope(settings, fraction=0.25, names=("rotary_emb_base", "rotary_pct")),
        family="gpt_neox",
        normalization="layer",
        norm_epsilon=settings.number("layer_norm_eps", 1e-5),
        activation=ACTIVATIONS[settings.word("hidden_act", "gelu")],
        qkv_bias=True,
        proj_and_mlp_bias=True,
        parallel_residual=settings.flag("use_parallel_residual"),
    )


def to_hf(arch: Architecture) -> dict:
    own = {
        "hidden_act": next((name for name, value in ACTIVATIONS.items() if value == arch.activation), "gelu"),
        "rotary_emb_base": arch.rotary_base,
        "rotary_pct": arch.rotary_fraction,
        "layer_norm_eps": arch.norm_epsilon,
        "use_parallel_residual": arch.parallel_residual,
    }
    return {**write_base(arch), **own}


FAMILY = Family("gpt_neox", "gpt_neox", "GPTNeoX", from_hf, to_hf, qkv_fusion="none", names=NAMES)
