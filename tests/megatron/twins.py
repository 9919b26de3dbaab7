"""The same weights on both sides: Megatron's models here, and transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from tiny import ARCHITECTURE, randomize
from tiny_families import stored

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import import_hf
from aligner_lib.models.architecture import Architecture


def llama_config(arch: Architecture):
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=arch.num_layers,
        hidden_size=arch.hidden_size,
        num_attention_heads=arch.num_attention_heads,
        num_key_value_heads=arch.num_query_groups,
        head_dim=arch.kv_channels,
        intermediate_size=arch.ffn_hidden_size,
        vocab_size=arch.vocab_size,
        max_position_embeddings=arch.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rotary_base},
        rms_norm_eps=arch.norm_epsilon,
        tie_word_embeddings=arch.tied_embeddings,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def transformers_twin(folder):
    """transformers' model with a model folder's weights."""
    from transformers import LlamaForCausalLM

    arch = Architecture.load(folder)
    model = LlamaForCausalLM(llama_config(arch)).eval()
    missing, unexpected = model.load_state_dict(stored_tensors(folder), strict=False)
    assert unexpected == []
    assert set(missing) <= ({"lm_head.weight"} if arch.tied_embeddings else set())
    model.tie_weights()
    return model


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """A model folder's tensors under transformers' names, float32."""
    tensors = stored(folder / "weights", Architecture.load(folder))
    return {name: tensor.float().clone() for name, tensor in tensors.items()}


def random_twins(smoke: Path, folder: Path, seed: int):
    """A random untied model with grouped queries that transformers has written to folder/hf: as it was imported here (a
    model folder), and transformers' own. smoke: whose tokenizer it has."""
    from transformers import LlamaForCausalLM

    arch = replace(ARCHITECTURE, vocab_size=Tokenizer(smoke).vocab_size)
    twin = LlamaForCausalLM(llama_config(arch)).eval()
    randomize(twin, seed)
    twin.save_pretrained(folder / "hf")
    Tokenizer(smoke).save(folder / "hf")
    return import_hf(folder / "hf", folder / "imported"), twin
