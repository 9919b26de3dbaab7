"""Write an `Architecture` as NeMo's model_config.yaml. `aligner_lib.models.nemo.config` reads the same architecture back."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from aligner_lib.models.architecture import Architecture, RopeScaling
from aligner_lib.models.nemo.config import ACTIVATIONS, GEMMA2, NORMALIZATIONS, NemoConfig
from aligner_lib.models.reward_scale import RewardScale

GPT = "nemo.collections.nlp.models.language_modeling.megatron_gpt_model.MegatronGPTModel"
REWARD_MODEL = "nemo_aligner.models.nlp.gpt.megatron_gpt_reward_model.MegatronGPTRewardModel"


def nemo_config(
    arch: Architecture, tokenizer: dict[str, Any], dtype: str, scale: RewardScale
) -> dict[str, Any]:
    """The model_config.yaml of an architecture, with all settings that NeMo needs to restore a model.

    tokenizer: the tokenizer section; dtype: the weights' dtype in safetensors' spelling. Raises ValueError for an architecture
    that NeMo's keys can't describe.
    """
    norm = next(name for name, value in NORMALIZATIONS.items() if value == _norm(arch))
    activation = next((name for name, value in ACTIVATIONS.items() if value == arch.activation), None)
    if activation is None:
        raise ValueError(f"NeMo's activations here have no {arch.activation}: export the model with --to hf")
    if arch.head == "scalar" and (
        arch.embedding_scale != 1 or (arch.rope_scaling and arch.rope_scaling.kind == "llama3")
    ):
        raise ValueError(
            "NeMo-Aligner's reward models have neither Gemma's scaled embeddings nor Llama 3's scaled positions, so the rewards "
            "would change there: export the model with --to hf"
        )
    config: dict[str, Any] = {
        "target": REWARD_MODEL if arch.head == "scalar" else GPT,
        "mcore_gpt": True,
        "transformer_engine": True,
        "megatron_amp_O2": dtype != "F32",
        "precision": {"BF16": "bf16", "F16": 16}.get(dtype, 32),
        "micro_batch_size": 1,
        "global_batch_size": 1,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "encoder_seq_length": arch.max_position_embeddings,
        "max_position_embeddings": arch.max_position_embeddings,
        "num_layers": arch.num_layers,
        "hidden_size": arch.hidden_size,
        "ffn_hidden_size": arch.ffn_hidden_size,
        "num_attention_heads": arch.num_attention_heads,
        "num_query_groups": arch.num_query_groups,
        "kv_channels": arch.kv_channels,
        "normalization": norm,
        "layernorm_zero_centered_gamma": arch.zero_centered_norm,
        "layernorm_epsilon": arch.norm_epsilon,
        "activation": activation,
        "openai_gelu": arch.activation == "geglu",
        "bias": False,
        "qkv_bias": arch.qkv_bias,
        "qk_layernorm": arch.qk_norm,
        "position_embedding_type": "rope",
        "rotary_base": arch.rotary_base,
        "rotary_percentage": arch.rotary_fraction,
        "share_embeddings_and_output_weights": arch.tied_embeddings,
        "apply_embedding_scaling": arch.embedding_scale != 1.0,
        "override_vocab_size": arch.vocab_size,
        "make_vocab_size_divisible_by": math.gcd(128, arch.vocab_size),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "init_method_std": 0.02,
        "use_cpu_initialization": False,
        "tokenizer": tokenizer,
        "optim": {"name": "distributed_fused_adam", "lr": 1e-6},
        "data": {},
        "nemo_version": "1.23.0",
        **_written_rope(arch.rope_scaling),
        **_written_attention(arch),
    }
    if arch.head == "scalar":
        config |= {
            "forward_mbs": 1,
            "force_head_dtype": "float32",
            "reward_standardization": {
                "enable": scale != RewardScale(),
                "mean": scale.mean,
                "std": scale.std,
            },
        }
    read = asdict(NemoConfig(config, "model_config.yaml").architecture(arch.vocab_size, arch.head))
    original = asdict(arch)
    if lost := [
        f"{name}={original[name]}" for name in original if name != "family" and original[name] != read[name]
    ]:
        raise ValueError(
            f"NeMo's model_config.yaml has no key for {', '.join(lost)}: export the model with --to hf"
        )
    return config


def _norm(arch: Architecture) -> tuple[str, bool]:
    return (arch.normalization, arch.zero_centered_norm and arch.normalization == "layer")


def _written_rope(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    if scaling.kind == "linear":
        return {"seq_len_interpolation_factor": scaling.factor}
    return {
        "scale_positional_embedding": True,
        "scale_factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "old_context_len": scaling.original_positions,
    }


def _written_attention(arch: Architecture) -> dict[str, Any]:
    # see NemoConfig: Gemma 2's window includes the token
    tokens_before = arch.sliding_window and arch.sliding_window - (not arch.post_norms)
    window = {"window_size": [tokens_before, 0]} if arch.sliding_window else {}
    if not arch.post_norms:
        return window
    return {
        **window,
        "name": GEMMA2,
        "mcore_customization_config": {
            "query_pre_attn_scalar": round((arch.attention_scale or arch.kv_channels**-0.5) ** -2),
            "attn_logit_softcapping": arch.attention_softcap,
            "final_logit_softcapping": arch.logits_softcap,
        },
    }
