"""Aligner Lab's model folders as models of transformers: the same weights on the other side."""

from __future__ import annotations

from pathlib import Path

import torch

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import to_hf, weights
from aligner_lib.models.tensor_store import StoreReader
from benchmarks.ours import scalar_head
from benchmarks.setting import Setting

# not the stop token: transformers' reward models read the last token that is no padding
PAD_TOKEN = "<|endoftext|>"


def causal_lm(setting: Setting):
    """A LlamaForCausalLM in float32."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(_config(setting))
    missing, unexpected = model.load_state_dict(_state_dict(setting), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (
        f"missing {missing}, unexpected {unexpected}"
    )
    model.tie_weights()
    return model


def saved(setting: Setting) -> Path:
    """The folder of `causal_lm` as transformers saves the model."""
    folder = setting.folder / "transformers"
    if not folder.exists():
        causal_lm(setting).save_pretrained(folder)
    return folder


def sequence_classifier(setting: Setting):
    """A LlamaForSequenceClassification with a single output, the benchmarks' reward head."""
    from transformers import LlamaForSequenceClassification

    model = LlamaForSequenceClassification(_config(setting, num_labels=1))
    state = {name: value for name, value in _state_dict(setting).items() if name != "lm_head.weight"}
    model.load_state_dict(state | {"score.weight": scalar_head(setting)})
    return model


def tokenizer(setting: Setting):
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(setting.model_folder)
    loaded.pad_token = PAD_TOKEN
    return loaded


def _config(setting: Setting, **more):
    from transformers import LlamaConfig

    a, stop_id = setting.architecture(), setting.tokenizer().eos_id
    return LlamaConfig(
        vocab_size=a.vocab_size,
        hidden_size=a.hidden_size,
        intermediate_size=a.ffn_hidden_size,
        num_hidden_layers=a.num_layers,
        num_attention_heads=a.num_attention_heads,
        num_key_value_heads=a.num_query_groups,
        head_dim=a.kv_channels,
        max_position_embeddings=a.max_position_embeddings,
        rms_norm_eps=a.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": a.rotary_base},
        tie_word_embeddings=a.tied_embeddings,
        pad_token_id=tokenizer(setting).pad_token_id,
        bos_token_id=None,
        eos_token_id=stop_id,
        dtype=torch.float32,
        **more,
    )


def _state_dict(setting: Setting) -> dict[str, torch.Tensor]:
    architecture: Architecture = setting.architecture()
    store = StoreReader(setting.model_folder / "weights")
    state = {}
    for weight in weights(architecture):
        fused = store.read_whole(weight.megatron, torch.float32)
        state |= dict(zip(weight.hf, to_hf(weight, fused, architecture)))
    return state
