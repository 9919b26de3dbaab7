"""Self-attention for training and generation: Megatron's projections, torch's fused attention, a KV cache.

Megatron's own cache stores keys before rotary positions are applied, rotates all of them again at every step,
and takes prompts of one length only. This one stores rotated keys, and a mask lets rows begin at different
columns. With rotary positions only distances count, so a left-padded row gives the same values as the row
alone, and a row that joins later counts its positions from where it began.

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
    """Keys and values of every layer for rows that end in the same column, whatever their lengths.

    `sequence_len_offset` is how many columns are filled. starts: int64 [B], the column of each row's first token; what
    stands before it is padding. origins: int64 [B], the column of its rotary position 0.
    """

    def __init__(self, starts: torch.Tensor, columns: int):
        super().__init__(len(starts), columns)
        self.starts, self.origins = starts, torch.zeros_like(starts)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each [B, G, columns, D]

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

    def prepare(self, new_tokens: int) -> None:
        """Set what all layers read while they compute new tokens.

        current_mask: bool [B, 1, S, K], which cached columns each new token attends to; a padding token attends to
        itself, which keeps its softmax finite. current_positions: int64 [S, B], their rotary positions.
        """
        start, end = self.sequence_len_offset, self.sequence_len_offset + new_tokens
        columns = torch.arange(end, device=self.starts.device)
        queries = columns[start:, None]
        causal = columns[None, :] <= queries  # [S, K]
        itself = columns[None, :] == queries
        visible = columns >= self.starts[:, None]  # [B, K]
        self.current_mask = (causal & visible[:, None] | itself)[:, None]
        self.current_positions = queries - self.origins

    def arrange(self, rows: torch.Tensor, added: int, end: int, columns: int) -> None:
        """Keep only these rows, in this order, with empty ones behind them, and move what is cached.

        rows: int64 [B'], numbers of the rows that stay. end: the number of filled columns from then on; where it is
        smaller, the first ones are dropped. columns: how many there is room for.
        """
        filled = self.sequence_len_offset
        kept = min(filled, end)
        for name in ("starts", "origins"):
            # a row that is over may have begun in a column that is dropped
            own = (getattr(self, name)[rows] + end - filled).clamp(min=0)
            setattr(self, name, torch.cat([own, own.new_full((added,), end)]))

        def arranged(old: torch.Tensor) -> torch.Tensor:
            # zeros, for a masked value that is not a number would not be masked
            new = old.new_zeros(len(rows) + added, old.shape[1], columns, old.shape[3])
            new[: len(rows), :, end - kept : end] = old[rows, :, filled - kept : filled]
            return new

        for layer, (keys, values) in self.layers.items():
            self.layers[layer] = arranged(keys), arranged(values)
        self.sequence_len_offset = end
        self.max_batch_size, self.max_sequence_length = len(rows) + added, columns

    def insert(self, rows: torch.Tensor, prompts: KVCache, copies: torch.Tensor) -> None:
        """Put prompts that another cache has computed into rows of this one, so that they end where all do.

        rows: int64 [B']; copies: int64 [B'], the other's row for each of them. The other has no more filled columns.
        """
        end = self.sequence_len_offset
        begin = end - prompts.sequence_len_offset
        assert begin >= 0, f"{prompts.sequence_len_offset} columns do not end at column {end}"
        self.starts[rows] = begin + prompts.starts[copies]
        self.origins[rows] = begin + prompts.origins[copies]
        for layer, theirs in prompts.layers.items():
            if layer not in self.layers:
                shape = (
                    self.max_batch_size,
                    theirs[0].shape[1],
                    self.max_sequence_length,
                    theirs[0].shape[3],
                )
                self.layers[layer] = tuple(one.new_zeros(shape) for one in theirs)
            for own, other in zip(self.layers[layer], theirs):
                own[rows, :, begin:end] = other[copies, :, : end - begin]


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
            elif inference_context is not None:
                angles = angles[:, 0][inference_context.current_positions]  # [S, B, 1, D/2]
            else:
                angles = angles[: query.shape[0]]
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
