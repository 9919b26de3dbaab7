"""An architecture as Hugging Face's config.json: the inverse of `Architecture.from_hf`."""

from __future__ import annotations

from aligner_lib.models.architecture import Architecture


def hf_config(arch: Architecture) -> dict:
    """What `transformers` and vLLM read of a language model's architecture."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": arch.num_layers,
        "hidden_size": arch.hidden_size,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_query_groups,
        "head_dim": arch.kv_channels,
        "intermediate_size": arch.ffn_hidden_size,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_position_embeddings,
        # under both names: transformers 4 reads the first, 5 the second
        "rope_theta": arch.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": arch.rotary_base},
        "rms_norm_eps": arch.norm_epsilon,
        "tie_word_embeddings": arch.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
