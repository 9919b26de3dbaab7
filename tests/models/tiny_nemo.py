"""Small NeMo archives, written by torch.save from numbers here, with names and shards put down independently."""

from __future__ import annotations

import shutil
import tarfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from tiny_llama import ARCH

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import weights

LLAMA = replace(ARCH, num_layers=4)
GPT_2B = replace(
    LLAMA,
    num_query_groups=4,
    ffn_hidden_size=88,
    rotary_base=Architecture.rotary_base,
    family="nemo_gpt",
    normalization="layer",
    zero_centered_norm=True,
    rotary_fraction=0.5,
)
# GPT-2B-001's settings, with small numbers
CONFIG = {
    "micro_batch_size": 4,
    "encoder_seq_length": 128,
    "max_position_embeddings": "${.encoder_seq_length}",
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 88,
    "num_attention_heads": 4,
    "kv_channels": None,
    "layernorm_epsilon": "1e-5",
    "normalization": "layernorm1p",
    "bias": False,
    "activation": "fast-swiglu",
    "transformer_block_type": "pre_ln",
    "position_embedding_type": "rope",
    "rotary_percentage": 0.5,
    "attention_type": "multihead",
    "share_embeddings_and_output_weights": False,
    "tokenizer": {"library": "huggingface", "type": "nobody/knows"},
    "precision": "bf16",
    "target": "nemo.collections.nlp.models.language_modeling.megatron_gpt_model.MegatronGPTModel",
}
LLAMA_CONFIG = CONFIG | {
    "mcore_gpt": True,
    "ffn_hidden_size": 96,
    "num_query_groups": 2,
    "normalization": "rmsnorm",
    "rotary_percentage": 1.0,
    "rotary_base": 50000,
}

LAYER = "model.language_model.encoder.layers."
APEX = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "self_attention.linear_qkv.": "self_attention.query_key_value.",
    "self_attention.linear_proj.": "self_attention.dense.",
    "mlp.linear_fc1.layer_norm_": "post_attention_layernorm.",
    "mlp.linear_fc1.": "mlp.dense_h_to_4h.",
    "mlp.linear_fc2.": "mlp.dense_4h_to_h.",
}
TRANSFORMER_ENGINE = {
    "self_attention.linear_qkv.layer_norm_": "self_attention.layernorm_qkv.layer_norm_",
    "self_attention.linear_qkv.": "self_attention.layernorm_qkv.",
    "self_attention.linear_proj.": "self_attention.proj.",
    "mlp.linear_fc1.layer_norm_": "layernorm_mlp.layer_norm_",
    "mlp.linear_fc1.": "layernorm_mlp.fc1_",
    "mlp.linear_fc2.": "layernorm_mlp.fc2_",
}


def random_weights(arch: Architecture, dtype=torch.bfloat16, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights under Megatron's names, N(0, 0.05)."""
    generator = torch.Generator().manual_seed(seed)
    return {
        weight.megatron: (0.05 * torch.randn(weight.shape, generator=generator)).to(dtype)
        for weight in weights(arch)
    }


def old_name(name: str, layer_names: dict[str, str] = APEX) -> str:
    """NeMo's old name of one of Megatron's."""
    if name.startswith("decoder.layers."):
        number, inside = name.removeprefix("decoder.layers.").split(".", 1)
        ours = next(part for part in layer_names if inside.startswith(part))
        return f"{LAYER}{number}.{layer_names[ours]}{inside.removeprefix(ours)}"
    return "model.language_model." + name.replace("decoder.", "encoder.")


ROWS = (
    *("embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias"),
    *("fc1.weight", "fc1_2.weight"),
)


def shard(name: str, tensor: torch.Tensor, rank: int, size: int, gated: bool = True) -> torch.Tensor:
    """A tensor-parallel rank's part of a weight."""
    if size == 1:
        return tensor
    if gated and name.endswith("mlp.linear_fc1.weight"):
        return torch.cat([half.chunk(size)[rank] for half in tensor.chunk(2)])
    if name.endswith(ROWS):
        return tensor.chunk(size)[rank].clone()
    if name.endswith(("linear_proj.weight", "linear_fc2.weight", "value_head.weight")):
        return tensor.chunk(size, dim=1)[rank]  # not contiguous
    return tensor


def write_old(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    config: dict = CONFIG,
    tp: int = 1,
    pp: int = 1,
    rename=old_name,
    layers: int = 4,
    gated: bool = True,
) -> Path:
    """NeMo's old checkpoint as an extracted folder. rename: gives the stored name of one of Megatron's."""
    folder.mkdir(parents=True)
    (folder / "model_config.yaml").write_text(yaml.safe_dump(config))
    for stage in range(pp):
        of_stage = {name: tensor for name, tensor in tensors.items() if stage_of(name, layers, pp) == stage}
        for rank in range(tp):
            state = OrderedDict()
            for name, tensor in of_stage.items():
                state[rename(local(name, layers // pp))] = shard(name, tensor, rank, tp, gated)
            path = folder / rank_folder(rank, stage, tp, pp) / "model_weights.ckpt"
            path.parent.mkdir(exist_ok=True)
            torch.save(state, path)
    return folder


def stage_of(name: str, layers: int, pp: int) -> int:
    if name.startswith("decoder.layers."):
        return int(name.split(".")[2]) * pp // layers
    return 0 if name.startswith("embedding.") else pp - 1


def local(name: str, per_stage: int) -> str:
    """A pipeline stage counts its own layers."""
    if not name.startswith("decoder.layers."):
        return name
    head, layers, number, inside = name.split(".", 3)
    return f"{head}.{layers}.{int(number) % per_stage}.{inside}"


def rank_folder(rank: int, stage: int, tp: int, pp: int) -> str:
    if tp == pp == 1:
        return "."
    return f"mp_rank_{rank:02d}" if pp == 1 else f"tp_rank_{rank:02d}_pp_rank_{stage:03d}"


def pack(folder: Path, path: Path, mode: str = "w") -> Path:
    """The archive that NeMo makes of a folder."""
    with tarfile.open(path, mode) as tar:
        tar.add(folder, arcname=".")
    return path


def put_tokenizer(source: Path, folder: Path) -> None:
    """A model folder's tokenizer, beside an archive or in it."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
