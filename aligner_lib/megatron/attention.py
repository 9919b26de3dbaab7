"""Self-attention for training and generation: Megatron's projections, torch's fused attention, a KV cache.

What a model has beside that (a sliding window, soft caps, norms of queries and keys, layers without positions), a layer
reads from the architecture. Soft caps alone have no fused kernel.

Megatron's own cache stores keys before rotary positions are applied, rotates all of them again at every step,
and takes prompts of one length only. This one stores rotated keys, and a mask lets rows begin at different
columns. With rotary positions only distances count, so a left-padded row gives the same values as the row
alone, and a row that joins later counts its positions from where it began.

    B batch, S new tokens, K cached tokens, T real tokens of all rows
    H hidden, N query heads, G key/value heads, D head size
    W tokens that a token of a layer with a sliding window attends to, itself included
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from aligner_lib.megatron import cpu
from aligner_lib.megatron.kernels import rotate, widened
from aligner_lib.megatron.rotary import rotary_frequencies
from aligner_lib.models.architecture import Architecture

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
        self.masks: dict[int | None, torch.Tensor] = {}  # of the current forward pass, by W; None: no window
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each [B, G, columns, D]

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new keys and values, [B, G, S, D] each; returns all so far, [B, G, K, D] each, in their dtype.

        layer: Megatron's layer number.
        """
        start, end = self.sequence_len_offset, self.sequence_len_offset + key.shape[2]
        if layer not in self.layers:
            shape = (key.shape[0], key.shape[1], self.max_sequence_length, key.shape[3])
            self.layers[layer] = (key.new_empty(shape), value.new_empty(shape))
        keys, values = self.layers[layer]
        keys[:, :, start:end], values[:, :, start:end] = key, value
        return keys[:, :, :end], values[:, :, :end]

    def prepare(self, new_tokens: int, windows: Iterable[int | None] = (None,)) -> None:
        """Set what all layers read while they compute new tokens.

        masks: for each window W bool [B, 1, S, K], which cached columns each new token attends to; a padding token attends
        to itself, which keeps its softmax finite. Distances are those of columns, as a row's tokens are neighbours
        whatever its padding. current_positions: int64 [S, B], their rotary positions.
        """
        start, end = self.sequence_len_offset, self.sequence_len_offset + new_tokens
        columns = torch.arange(end, device=self.starts.device)
        queries = columns[start:]
        itself = columns[None, :] == queries[:, None]  # [S, K]
        visible = columns >= self.starts[:, None]  # [B, K]
        self.masks = {
            window: (causal_mask(queries, columns, window) & visible[:, None] | itself)[:, None]
            for window in windows
        }
        self.current_positions = queries[:, None] - self.origins

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
                self.layers[layer] = tuple(prompt_tensor.new_zeros(shape) for prompt_tensor in theirs)
            for own, other in zip(self.layers[layer], theirs):
                own[rows, :, begin:end] = other[copies, :, : end - begin]


class FusedSelfAttention(SelfAttention):
    """Megatron's SelfAttention with torch's fused attention as its core.

    Weights, their names and their tensor-parallel sharding are Megatron's.
    """

    def __init__(self, *args, architecture: Architecture, **kwargs):
        super().__init__(*args, **kwargs)
        self.core_attention = IdentityOp()  # unused, and without weights
        layer = self.layer_number - 1  # Megatron counts from 1, over all pipeline stages
        slides = layer in architecture.sliding_layers
        self.window = architecture.sliding_window if slides else None
        self.scale, self.softcap = architecture.attention_scale, architecture.attention_softcap
        self.frequencies = None  # a plain attribute: as a buffer it would be rounded to bf16 with the weights
        if layer not in architecture.nope_layers:
            self.frequencies = rotary_frequencies(architecture, slides).to(cpu.DEVICE)

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        inference_context=None,
        packed_seq_params=None,
        **_,
    ):
        """Causal attention: hidden_states [S, B, H] → ([S, B, H], bias), in the model's dtype.

        With an Unpadding as packed_seq_params: [T, 1, H] → ([T, 1, H], bias). attention_mask is not read:
        under a causal mask right padding changes no real token. With selective recomputation the backward pass
        computes again what lies between the projections: norms, rotary positions, padding and attention.
        """
        projected, sizes = self.get_query_key_value_tensors(hidden_states, split_qkv=False)
        arguments = projected, sizes, inference_context, packed_seq_params
        if self.training and self.config.recompute_granularity == "selective":
            # nothing between the projections is random
            context = checkpoint(self._attend, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            context = self._attend(*arguments)
        return self.linear_proj(context)

    def _attend(self, projected, sizes, cache, unpadding) -> torch.Tensor:
        """What lies between the projections: queries, keys and values of each group [S, B, G, (N/G + 2) D] → [S, B, N D].

        sizes: the widths of the three. In bf16 the rotary positions are applied in float32. On a CPU so is the attention:
        there, torch has several kernels for bf16, which round differently, so that generation and training would disagree.
        """
        dtype = projected.dtype
        query, key, value = projected.split(sizes, dim=-1)
        query = query.reshape(*key.shape[:2], -1, key.shape[-1])  # [S, B, N, D]; key and value [S, B, G, D]
        if self.config.qk_layernorm:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self.frequencies is not None:
            if unpadding is not None:
                positions = unpadding.columns[:, None]
            elif cache is not None:
                positions = cache.current_positions  # [S, B]
            else:
                positions = torch.arange(len(query), device=query.device)[:, None]
            angles = (positions[..., None].float() * self.frequencies)[:, :, None]  # [S, B or 1, 1, R/2]
            cos, sin = angles.cos(), angles.sin()
            query, key = rotate(widened(query), cos, sin), rotate(widened(key), cos, sin)
        within = dtype if cpu.HAS_CUDA else torch.promote_types(dtype, torch.float32)
        query, key, value = query.to(within), key.to(within), value.to(within)
        if unpadding is not None:
            query, key, value = (unpadding.restore(x[:, 0]).transpose(0, 1) for x in (query, key, value))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [B, N or G, S, D]
        if cache is None:
            context = self._causal(query, key, value)
        else:
            keys, values = cache.append(self.layer_number, key, value)
            context = masked_attention(
                query, keys, values, cache.masks[self.window], self.scale, self.softcap
            )
        context = context.permute(2, 0, 1, 3).flatten(2).to(dtype)  # [S, B, N * D]
        return context if unpadding is None else unpadding.remove(context.transpose(0, 1))[:, None]

    def _causal(self, query, key, value) -> torch.Tensor:
        """Attention of rows to themselves: query [B, N, S, D], key and value [B, G, S, D] → [B, N, S, D]."""
        length = query.shape[2]
        if self.softcap is None and (self.window is None or length <= self.window):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self.scale, enable_gqa=True
            )
        columns = torch.arange(length, device=query.device)
        mask = causal_mask(columns, columns, self.window)[None, None]
        return masked_attention(query, key, value, mask, self.scale, self.softcap)


def causal_mask(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which keys a query attends to, by their columns, int64 [S] and [K]: bool [S, K]. window: W, or None."""
    behind = queries[:, None] - keys
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)


def masked_attention(query, keys, values, mask, scale=None, softcap=None) -> torch.Tensor:
    """Attention under a mask: query [B, N, S, D], keys and values [B, G, K, D], mask bool [B or 1, 1, S, K] → [B, N, S, D].

    scale: of the scores, None: 1 / √D. softcap: c, where the scores s become c · tanh(s / c); None: they stay.

    On CUDA, the fused kernels that take a mask take no grouped heads: torch would compute the scores, [B, N, S, K], in
    plain attention. For a prompt they are expanded to the query's heads instead. One new token has K scores a head, and
    an expanded cache would be larger.
    """
    if query.shape[2] > 1 or softcap is not None:
        keys, values = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (keys, values))
    if softcap is not None:
        return _capped_attention(query, keys, values, mask, scale, softcap)
    grouped = keys.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
    )


def _capped_attention(query, keys, values, mask, scale, softcap) -> torch.Tensor:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ keys.transpose(2, 3)) * (scale / softcap)
    scores = (scores.tanh() * softcap).masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype) @ values
