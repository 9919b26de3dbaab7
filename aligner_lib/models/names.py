"""The names of a model's weights in Hugging Face and in Megatron, and how their matrices are fused.

    H  hidden size            D  size of one head          F  feed-forward size        V  vocabulary
    G  key/value groups       Q  query heads in a group (heads = G·Q)

Megatron fuses matrices that multiply the same input. Query, key and value projections become one matrix of G groups. Each group
holds its Q query heads, then its key head, then its value head, so a tensor-parallel rank can take whole groups. The gate and
up projections of a gated MLP are stacked, gate first. Hugging Face's stacked families (`stacked_qkv`) store queries, keys and
values as one matrix, too, but in this order for the whole model, so only the order of rows changes. No values change: norm
weights for a factor of 1 + weight are stored alike in both formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families import FAMILIES
from aligner_lib.models.families.family import Fusion

Tensor = TypeVar("Tensor")  # a numpy array or a torch tensor: arguments and results have the same type


@dataclass(frozen=True)
class Weight:
    """A Megatron weight and the Hugging Face weights that form the Megatron weight."""

    megatron: str
    hf: tuple[str, ...]
    """The names in Hugging Face. Empty: Hugging Face has no counterpart, and the weight is zero here."""
    shape: tuple[int, ...]
    """The shape of the whole (not sharded) Megatron weight."""
    fusion: Fusion = "none"


def weights(arch: Architecture) -> Iterator[Weight]:
    """Every weight of a model, in the order of use: embedding, layers, head."""
    for weight in _llama_weights(arch):
        yield replace(weight, hf=tuple(map(FAMILIES[arch.family].name_of, weight.hf)))


def _llama_weights(arch: Architecture) -> Iterator[Weight]:
    """As `weights`, with the parts of names that are Llama's."""
    embedding = (arch.vocab_size, arch.hidden_size)
    yield Weight("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), embedding)
    for layer in range(arch.num_layers):
        yield from _layer_weights(arch, f"decoder.layers.{layer}.", f"model.layers.{layer}.")
    yield from _norm(arch, "decoder.final_layernorm.", "model.norm")
    if arch.head == "scalar":
        yield Weight("value_head.weight", ("score.weight",), (1, arch.hidden_size))
        yield Weight("value_head.bias", (), (1,))
    elif not arch.tied_embeddings:
        yield Weight("output_layer.weight", ("lm_head.weight",), embedding)


def _layer_weights(arch: Architecture, mcore: str, hf: str) -> Iterator[Weight]:
    H, F, D = arch.hidden_size, arch.ffn_hidden_size, arch.kv_channels
    heads, groups = arch.num_attention_heads, arch.num_query_groups
    attention, mlp, family = mcore + "self_attention.", mcore + "mlp.", FAMILIES[arch.family]
    norms, fusion, bias = family.norms, family.qkv_fusion, arch.proj_and_mlp_bias
    qkv = [f"{hf}self_attn.{part}_proj" for part in ("qkv" if fusion == "qkv" else ("qkv",))]
    # A norm is named after the next matrix: Transformer Engine fuses norm and matrix, and the local spec renames the norm.
    if arch.pre_norms:
        yield from _norm(arch, attention + "linear_qkv.layer_norm_", hf + norms["attention"])
    yield from _linear(attention + "linear_qkv.", qkv, ((heads + 2 * groups) * D, H), arch.qkv_bias, fusion)
    if arch.qk_norm:
        queries, keys = (heads * D, groups * D) if arch.qk_norm_over_heads else (D, D)
        yield from _norm(arch, attention + "q_layernorm.", hf + "self_attn.q_norm", queries)
        yield from _norm(arch, attention + "k_layernorm.", hf + "self_attn.k_norm", keys)
    yield from _linear(attention + "linear_proj.", [hf + "self_attn.o_proj"], (H, heads * D), bias)
    if arch.post_norms:
        yield from _norm(arch, attention + "linear_proj.post_layernorm.", hf + norms["after_attention"])
    if arch.pre_norms:
        yield from _norm(arch, mlp + "linear_fc1.layer_norm_", hf + norms["mlp"])
    if fusion == "stacked_qkv":  # gate and up in Megatron's order
        yield from _linear(mlp + "linear_fc1.", [hf + "mlp.gate_up_proj"], (2 * F, H), bias)
    elif arch.gated:
        gate_up = [hf + "mlp.gate_proj", hf + "mlp.up_proj"]
        yield from _linear(mlp + "linear_fc1.", gate_up, (2 * F, H), bias, "gate_up")
    else:
        yield from _linear(mlp + "linear_fc1.", [hf + "mlp.up_proj"], (F, H), bias)
    yield from _linear(mlp + "linear_fc2.", [hf + "mlp.down_proj"], (H, F), bias)
    if arch.post_norms:
        yield from _norm(arch, mlp + "linear_fc2.post_layernorm.", hf + norms["after_mlp"])


def _linear(
    mcore: str, hf: Sequence[str], shape: tuple[int, int], bias: bool, fusion: Fusion = "none"
) -> Iterator[Weight]:
    """The matrix of a linear layer, and its bias. hf: the names of the layers that form the linear layer."""
    yield Weight(mcore + "weight", _all(hf, ".weight"), shape, fusion)
    if bias:
        yield Weight(mcore + "bias", _all(hf, ".bias"), shape[:1], fusion)


def _norm(arch: Architecture, mcore: str, hf: str, size: int | None = None) -> Iterator[Weight]:
    """The weights of a norm. size: the number of normalised values; None: the hidden size."""
    for part in ("weight", "bias") if arch.normalization == "layer" else ("weight",):
        yield Weight(mcore + part, (f"{hf}.{part}",), (size or arch.hidden_size,))


def _all(names: Sequence[str], ending: str) -> tuple[str, ...]:
    return tuple(name + ending for name in names)


def hf_shapes(weight: Weight, arch: Architecture) -> list[tuple[int, ...]]:
    """The shapes of the Hugging Face weights that form a Megatron weight, in the order of `weight.hf`."""
    width = weight.shape[1:]  # empty for a bias
    if weight.fusion == "qkv":
        return [(rows, *width) for rows in _qkv_rows(arch)]
    if weight.fusion == "gate_up":
        return [(arch.ffn_hidden_size, *width)] * 2
    return [weight.shape] if weight.hf else []


def to_megatron(weight: Weight, parts: Sequence[Tensor], arch: Architecture) -> Tensor:
    """Fuse Hugging Face weights (shapes of `hf_shapes`) into the Megatron weight (`weight.shape`).

    parts: numpy arrays or torch tensors of any dtype. The result has the same type and dtype.
    """
    if weight.fusion == "stacked_qkv":
        queries, keys, _ = _qkv_rows(arch)
        [stacked] = parts
        parts = stacked[:queries], stacked[queries : queries + keys], stacked[queries + keys :]
    if weight.fusion in ("qkv", "stacked_qkv"):
        heads = (arch.num_query_groups, -1, arch.kv_channels, *weight.shape[1:])  # [G, Q or 1, D, H]
        return _join([part.reshape(heads) for part in parts], 1).reshape(weight.shape)
    if weight.fusion == "gate_up":
        return _join(parts, 0)
    return parts[0]


def to_hf(weight: Weight, fused: Tensor, arch: Architecture) -> tuple[Tensor, ...]:
    """Split a Megatron weight into Hugging Face's weights: the inverse of `to_megatron`."""
    if weight.fusion in ("qkv", "stacked_qkv"):
        groups, width = arch.num_query_groups, weight.shape[1:]
        queries = arch.num_attention_heads // groups
        by_group = fused.reshape(groups, queries + 2, arch.kv_channels, *width)
        parts = by_group[:, :queries], by_group[:, queries], by_group[:, queries + 1]
        parts = tuple(part.reshape(-1, *width) for part in parts)
        return parts if weight.fusion == "qkv" else (_join(parts, 0),)
    if weight.fusion == "gate_up":
        return fused[: arch.ffn_hidden_size], fused[arch.ffn_hidden_size :]
    return (fused,) if weight.hf else ()


def _qkv_rows(arch: Architecture) -> tuple[int, int, int]:
    """The rows of queries, keys and values in Hugging Face's matrices."""
    keys = arch.num_query_groups * arch.kv_channels
    return arch.num_attention_heads * arch.kv_channels, keys, keys


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(list(parts), axis)
