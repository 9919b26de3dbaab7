"""Tiny models for the tests, written from numbers here: as Hugging Face folders and as GGUF files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import hf_shapes, weights

ARCH = Architecture(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_query_groups=2,
    ffn_hidden_size=96,
    vocab_size=1024,
    max_position_embeddings=128,
    kv_channels=16,
    rotary_base=50000.0,
    norm_epsilon=1e-5,
    tied_embeddings=False,
)


def random_weights(arch: Architecture, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under Hugging Face's names, float32, N(0, 0.05)."""
    random = np.random.default_rng(seed)
    shapes = {name: shape for w in weights(arch) for name, shape in zip(w.hf, hf_shapes(w, arch))}
    return {name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}


def assert_same_bits(
    tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor | np.ndarray]
) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        tensor = torch.as_tensor(tensor)
        assert tensors[name].dtype == tensor.dtype, name
        assert torch.equal(tensors[name], tensor), name


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())


def update_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(read_json(path) | changes))


def hf_config(arch: Architecture) -> dict:
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
        "rope_theta": arch.rotary_base,
        "rms_norm_eps": arch.norm_epsilon,
        "tie_word_embeddings": arch.tied_embeddings,
        "hidden_act": "silu",
    }


def write_hf(
    folder: Path, arch: Architecture, tensors: dict[str, np.ndarray], tokenizer: Path, shards: int = 1
) -> Path:
    """A Hugging Face folder; with shards > 1 in that many files and an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(hf_config(arch)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map = {
        name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)
    }
    for file in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of a query or key projection: row r of the first half of a head, then row r of the second."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    arch: Architecture,
    tensors: dict[str, np.ndarray],
    tokenizer: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    pre: str = "smollm",
    fields: dict[str, str | float] | None = None,
) -> Path:
    """A GGUF file as llama.cpp's converter lays it out: matrices as `kind`, norms in float32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(arch.num_layers)
    writer.add_context_length(arch.max_position_embeddings)
    writer.add_embedding_length(arch.hidden_size)
    writer.add_feed_forward_length(arch.ffn_hidden_size)
    writer.add_head_count(arch.num_attention_heads)
    writer.add_head_count_kv(arch.num_query_groups)
    writer.add_rope_freq_base(arch.rotary_base)
    writer.add_rope_dimension_count(arch.kv_channels)
    writer.add_layer_norm_rms_eps(arch.norm_epsilon)
    for key, value in (fields or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(key, value)
    _add_tokenizer(writer, tokenizer, pre)
    heads = {"q_proj": arch.num_attention_heads, "k_proj": arch.num_query_groups}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, arch.num_layers + 1)  # llama.cpp's
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        tensor = interleave(tensor, heads[part]) if part in heads else tensor
        stored = kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        name = names.get_name(name, (".weight",)) or name
        writer.add_tensor(name, gguf.quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Path, pre: str) -> None:
    stored = json.loads((tokenizer / "tokenizer.json").read_text())
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    vocabulary = stored["model"]["vocab"]
    special = {token["content"]: token["id"] for token in stored["added_tokens"]}
    ids = {**vocabulary, **special}
    tokens = sorted(ids, key=ids.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in stored["model"]["merges"]])
    writer.add_bos_token_id(ids[config["bos_token"]])
    writer.add_eos_token_id(ids[config["eos_token"]])
    writer.add_chat_template(config["chat_template"])
