"""Self-attention for training and generation: Megatron's projections, torch's fused attention, a KV cache.

Megatron's own cache stores keys before rotary positions are applied, rotates all of them again at every step,
and takes prompts of one length only. This one stores rotated keys, and a mask lets rows begin at different
columns. With rotary positions only distances count, so a left-padded row gives the same values as the row
alone.

    B batch, S new tokens, K cached tokens, T real tokens of all rows
    H hidden, N query heads, G key/value heads, D head size
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from aligner_lib.megatron import cpu
from aligner_lib.megatron.kernels import rotate

cpu.prepare()

from megatron.core.inference.contexts import StaticInferenceContext
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.identity_op import IdentityOp


class KVCache(StaticInferenceContext):
    """Keys and values of every layer for a batch of left-padded rows.

    visible: bool [B, max_length], False where a row is padding. `sequence_len_offset` is how many columns are
    filled.
    """

    def __init__(self, visible: torch.Tensor):
        batch, max_length = visible.shape
        super().__init__(batch, max_length)
        self.visible = visible
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each [B, G, max_length, D]

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new keys and values, [B, G, S, D] each; returns all so far, [B, G, K, D] each.

        All have the model's dtype. layer: Megatron's layer number.
        """
        start, end = self.sequence_len_offset, self.sequence_len_offset + key.shape[2]
        if layer not in self.layers:
            shape = (key.shape[0], key.shape[1], self.max_sequence_length, key.shape[3])
            self.layers[layer] = (key.new_empty(shape), value.new_empty(shape))
        keys, values = self.layers[layer]
        keys[:, :, start:end], values[:, :, start:end] = key, value
        return keys[:, :, :end], values[:, :, :end]

    def mask(self, new_tokens: int) -> torch.Tensor:
        """Which cached columns each new token attends to: bool [B, 1, S, K].

        A padding token attends to itself, which keeps its softmax finite.
        """
        start, end = self.sequence_len_offset, self.sequence_len_offset + new_tokens
        columns = torch.arange(end, device=self.visible.device)
        queries = columns[start:, None]
        causal = columns[None, :] <= queries  # [S, K]
        itself = columns[None, :] == queries
        return (causal & self.visible[:, None, :end] | itself)[:, None]

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows of the batch, in this order; a row may be there several times.

        rows: int64 [B'], numbers of the rows that stay.
        """
        self.visible = self.visible[rows]
        self.layers = {layer: (k[rows], v[rows]) for layer, (k, v) in self.layers.items()}
        self.max_batch_size = len(rows)


class FusedSelfAttention(SelfAttention):
    """Megatron's SelfAttention with torch's fused attention as its core.

    Weights, their names and their tensor-parallel sharding are Megatron's.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.core_attention = IdentityOp()  # unused, and without weights

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        inference_context=None,
        rotary_pos_emb=None,
        packed_seq_params=None,
        **_,
    ):
        """Causal attention: hidden_states [S, B, H] → ([S, B, H], bias), in the model's dtype.

        With an Unpadding as packed_seq_params: [T, 1, H] → ([T, 1, H], bias). attention_mask is not read:
        under a causal mask right padding changes no real token. With selective recomputation the backward pass
        computes again what lies between the projections: rotary positions, padding and attention.
        """
        projected, sizes = self.get_query_key_value_tensors(hidden_states, split_qkv=False)
        arguments = projected, sizes, rotary_pos_emb, inference_context, packed_seq_params
        if self.training and self.config.recompute_granularity == "selective":
            # nothing between the projections is random
            context = checkpoint(self._attend, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            context = self._attend(*arguments)
        return self.linear_proj(context)

    def _attend(self, projected, sizes, rotary_pos_emb, inference_context, unpadding) -> torch.Tensor:
        """What lies between the projections: queries, keys and values of each group [S, B, G, (N/G + 2) D] → [S, B, N D].

        sizes: the widths of the three.
        """
        query, key, value = projected.split(sizes, dim=-1)
        query = query.reshape(*key.shape[:2], -1, key.shape[-1])  # [S, B, N, D]; key and value [S, B, G, D]
        if rotary_pos_emb is not None:
            angles = rotary_pos_emb[0] if isinstance(rotary_pos_emb, tuple) else rotary_pos_emb
            angles = angles[..., : query.shape[-1] // 2]  # [columns, 1, 1, D/2]; the other half is the same
            if unpadding is not None:
                angles = angles.index_select(0, unpadding.columns)
            else:
                start = inference_context.sequence_len_offset if inference_context else 0
                angles = angles[start : start + query.shape[0]]
            cos, sin = angles.cos().to(query.dtype), angles.sin().to(query.dtype)
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if unpadding is not None:
            query, key, value = (unpadding.restore(x[:, 0]).transpose(0, 1) for x in (query, key, value))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [B, N or G, S, D]
        if inference_context is None:
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            keys, values = inference_context.append(self.layer_number, key, value)
            context = masked_attention(query, keys, values, inference_context.current_mask)
        context = context.permute(2, 0, 1, 3).flatten(2)  # [S, B, N * D]
        return context if unpadding is None else unpadding.remove(context.transpose(0, 1))[:, None]


def masked_attention(query, keys, values, mask) -> torch.Tensor:
    """Attention under a mask: query [B, N, S, D], keys and values [B, G, K, D], mask bool [B, 1, S, K] → [B, N, S, D].

    On CUDA, the fused kernels that take a mask take no grouped heads: torch would compute the scores, [B, N, S, K], in
    plain attention. For a prompt they are expanded to the query's heads instead. One new token has K scores a head, and
    an expanded cache would be larger.
    """
    if query.shape[2] > 1:
        keys, values = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (keys, values))
    grouped = keys.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)
