"""The names of Llama's weights in Hugging Face and in Megatron, and how their matrices are fused.

    H  hidden size            D  size of one head          F  feed-forward size        V  vocabulary
    G  key/value groups       Q  query heads in a group (heads = G·Q)

Megatron fuses matrices that multiply the same input. Query, key and value projections become one matrix of G
groups. Each group holds its Q query heads, then its key head, then its value head, so that a tensor-parallel
rank takes whole groups. The gate and up projections of SwiGLU are stacked, gate first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from aligner_lib.models.architecture import Architecture

Tensor = TypeVar("Tensor")  # a numpy array or a torch tensor: what goes in comes out


@dataclass(frozen=True)
class Weight:
    """One Megatron weight and the Hugging Face weights that it is made of."""

    megatron: str
    hf: tuple[str, ...]
    shape: tuple[int, ...]  # of the whole (not sharded) Megatron weight
    fusion: Literal["none", "qkv", "gate_up"] = "none"


def weights(arch: Architecture) -> Iterator[Weight]:
    """Every weight of a language model, in the order of use: embedding, layers, output."""
    assert arch.head == "lm", f"Hugging Face's Llama has no head {arch.head!r}"
    embedding = (arch.vocab_size, arch.hidden_size)
    yield Weight("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), embedding)
    for layer in range(arch.num_layers):
        yield from _layer_weights(arch, f"decoder.layers.{layer}.", f"model.layers.{layer}.")
    yield Weight("decoder.final_layernorm.weight", ("model.norm.weight",), (arch.hidden_size,))
    if not arch.tied_embeddings:
        yield Weight("output_layer.weight", ("lm_head.weight",), embedding)


def _layer_weights(arch: Architecture, mcore: str, hf: str) -> Iterator[Weight]:
    H, F, D = arch.hidden_size, arch.ffn_hidden_size, arch.kv_channels
    heads, groups = arch.num_attention_heads, arch.num_query_groups
    attention, mlp = mcore + "self_attention.", mcore + "mlp."
    qkv = tuple(f"{hf}self_attn.{part}_proj.weight" for part in "qkv")
    gate_up = (hf + "mlp.gate_proj.weight", hf + "mlp.up_proj.weight")
    # A norm is stored under the matrix that follows it: Transformer Engine fuses the two, the local spec renames.
    yield Weight(attention + "linear_qkv.layer_norm_weight", (hf + "input_layernorm.weight",), (H,))
    yield Weight(attention + "linear_qkv.weight", qkv, ((heads + 2 * groups) * D, H), "qkv")
    yield Weight(attention + "linear_proj.weight", (hf + "self_attn.o_proj.weight",), (H, heads * D))
    yield Weight(mlp + "linear_fc1.layer_norm_weight", (hf + "post_attention_layernorm.weight",), (H,))
    yield Weight(mlp + "linear_fc1.weight", gate_up, (2 * F, H), "gate_up")
    yield Weight(mlp + "linear_fc2.weight", (hf + "mlp.down_proj.weight",), (H, F))


def hf_shapes(weight: Weight, arch: Architecture) -> list[tuple[int, ...]]:
    """The shapes of the Hugging Face weights that form a Megatron weight, in the order of `weight.hf`."""
    if weight.fusion == "qkv":
        queries, keys = arch.num_attention_heads * arch.kv_channels, arch.num_query_groups * arch.kv_channels
        return [(rows, arch.hidden_size) for rows in (queries, keys, keys)]
    if weight.fusion == "gate_up":
        return [(arch.ffn_hidden_size, arch.hidden_size)] * 2
    return [weight.shape]


def to_megatron(weight: Weight, parts: Sequence[Tensor], arch: Architecture) -> Tensor:
    """Fuse Hugging Face weights (shapes of `hf_shapes`) into the Megatron weight (`weight.shape`).

    numpy arrays or torch tensors of any dtype; the result has the same type and dtype.
    """
    if weight.fusion == "qkv":
        groups, D, H = arch.num_query_groups, arch.kv_channels, arch.hidden_size
        by_group = [part.reshape(groups, -1, D, H) for part in parts]  # [G, Q or 1, D, H]
        return _join(by_group, 1).reshape(weight.shape)
    if weight.fusion == "gate_up":
        return _join(parts, 0)
    return parts[0]


def to_hf(weight: Weight, fused: Tensor, arch: Architecture) -> tuple[Tensor, ...]:
    """Split a Megatron weight into Hugging Face's weights: the inverse of `to_megatron`."""
    if weight.fusion == "qkv":
        groups, D = arch.num_query_groups, arch.kv_channels
        queries = arch.num_attention_heads // groups
        by_group = fused.reshape(groups, queries + 2, D, arch.hidden_size)
        parts = by_group[:, :queries], by_group[:, queries], by_group[:, queries + 1]
        return tuple(part.reshape(-1, arch.hidden_size) for part in parts)
    if weight.fusion == "gate_up":
        return fused[: arch.ffn_hidden_size], fused[arch.ffn_hidden_size :]
    return (fused,)


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(list(parts), axis)
