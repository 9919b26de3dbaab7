"""Self-attention for training and generation: Megatron's projections, torch's fused attention, a KV cache.

Each layer reads the model's special features from the architecture: a sliding window, soft caps, norms of queries and keys,
layers without rotary positions. Only soft caps have no fused kernel.

Megatron's own cache stores keys before the rotary positions are applied, rotates all keys again at every step, and requires
prompts of equal length. The cache here stores rotated keys, and a mask lets each row begin in its own column. Attention with
rotary positions depends only on the distances between tokens, so a left-padded row gives the same values as the row alone. A
row that joins later counts its positions from the column where its prompt was inserted.

    B batch, S new tokens, K cached tokens, T real tokens of all rows
    H hidden, N query heads, G key/value heads, D head size
    W tokens to which a token attends in a layer with a sliding window, itself included
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from aligner_lib.megatron import cpu, parallel
from aligner_lib.megatron.kernels import RMSNorm, rotate, widened
from aligner_lib.megatron.rotary import rotary_factor, rotary_frequencies
from aligner_lib.models.architecture import Architecture

cpu.prepare()

from megatron.core.inference.contexts import StaticInferenceContext
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.identity_op import IdentityOp


class KVCache(StaticInferenceContext):
    """Keys and values of every layer, for rows of any length that all end in the same column.

    `sequence_len_offset` is the number of filled columns. starts: int64 [B], the column of each row's first token; earlier
    columns are padding. origins: int64 [B], the column of each row's rotary position 0.
    """

    def __init__(self, starts: torch.Tensor, columns: int):
        super().__init__(len(starts), columns)
        self.starts, self.origins = starts, torch.zeros_like(starts)
        # masks of the current forward pass by window W; None: no window
        self.masks: dict[int | None, torch.Tensor] = {}
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each [B, G, columns, D]
        self.column: torch.Tensor | None = None  # within `fixed`: int64 [1], the column of the new token

    @contextmanager
    def fixed(self, column: torch.Tensor) -> Iterator[None]:
        """A context manager: inside, the new token's column is a tensor, int64 [1], and all shapes are those of the full cache.

        A recorded step can then be repeated for any column.
        """
        self.column = column
        try:
            yield
        finally:
            self.column = None

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new keys and values, [B, G, S, D] each. Returns all cached keys and values, [B, G, K, D] each.

        layer: Megatron's layer number. The cache keeps the dtype of the first keys and values.
        """
        if self.column is not None:
            return tuple(
                kept.index_copy_(2, self.column, new) for kept, new in zip(self.layers[layer], (key, value))
            )
        start, end = self.sequence_len_offset, self.sequence_len_offset + key.shape[2]
        if layer not in self.layers:
            shape = (key.shape[0], key.shape[1], self.max_sequence_length, key.shape[3])
            self.layers[layer] = (key.new_empty(shape), value.new_empty(shape))
        keys, values = self.layers[layer]
        keys[:, :, start:end], values[:, :, start:end] = key, value
        return keys[:, :, :end], values[:, :, :end]

    def prepare(self, new_tokens: int, windows: Iterable[int | None] = (None,)) -> None:
        """Set the masks and positions with which all layers compute the new tokens.

        masks: for each window W, bool [B, 1, S, K], the cached columns to which each new token attends. A padding token attends
        to itself, so that its softmax is finite. Windows count columns, because the tokens of a row lie in neighbouring
        columns. current_positions: int64 [S, B], the rotary positions of the new tokens.
        """
        start, end = self.sequence_len_offset, self.sequence_len_offset + new_tokens
        if self.column is not None:
            end = self.max_sequence_length
        columns = torch.arange(end, device=self.starts.device)
        queries = columns[start:] if self.column is None else self.column
        itself = columns[None, :] == queries[:, None]  # [S, K]
        visible = columns >= self.starts[:, None]  # [B, K]
        self.masks = {
            window: (causal_mask(queries, columns, window) & visible[:, None] | itself)[:, None]
            for window in windows
        }
        self.current_positions = queries[:, None] - self.origins

    def arrange(self, rows: torch.Tensor, added: int, end: int, columns: int) -> None:
        """Keep only the given rows, in the given order, add empty rows after them, and move the cached columns.

        rows: int64 [B'], the numbers of the rows to keep; added: the number of empty rows. end: the number of filled columns
        afterwards; if the number shrinks, the first columns are dropped. columns: the cache's new capacity.
        """
        filled = self.sequence_len_offset
        kept = min(filled, end)
        for name in ("starts", "origins"):
            # a finished row may have begun in a dropped column
            own = (getattr(self, name)[rows] + end - filled).clamp(min=0)
            setattr(self, name, torch.cat([own, own.new_full((added,), end)]))

        def arranged(old: torch.Tensor) -> torch.Tensor:
            # zeros instead of uninitialised memory, because a mask does not remove NaN
            new = old.new_zeros(len(rows) + added, old.shape[1], columns, old.shape[3])
            new[: len(rows), :, end - kept : end] = old[rows, :, filled - kept : filled]
            return new

        for layer, (keys, values) in self.layers.items():
            self.layers[layer] = arranged(keys), arranged(values)
        self.sequence_len_offset = end
        self.max_batch_size, self.max_sequence_length = len(rows) + added, columns

    def insert(self, rows: torch.Tensor, prompts: KVCache, copies: torch.Tensor) -> None:
        """Copy prompts from another cache into rows of this cache, so that the prompts end in the last filled column.

        rows: int64 [B'], rows of this cache; copies: int64 [B'], the row in `prompts` for each of them. `prompts` must not have
        more filled columns than this cache.
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


class NormOverHeads(RMSNorm):
    """RMSNorm over the values of all heads together, of which each tensor-parallel rank has a part.

    The weight is whole on every rank. A rank's gradient is zero outside its own part, and Megatron sums the ranks' gradients.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's heads, float [S, B, N or G, D] → the same shape in the weight's dtype."""
        values = widened(x.flatten(2))
        # the sum scales the heads of all ranks, so its gradient is also summed over the ranks
        sum_of_squares = copy_to_tensor_model_parallel_region(
            reduce_from_tensor_model_parallel_region(values.square().sum(-1, keepdim=True))
        )
        scale = (sum_of_squares / len(self.weight) + self.eps).rsqrt()
        weight = widened(self.weight).chunk(parallel.tp_size())[parallel.tp_rank()]
        return (values * scale * weight).to(self.weight.dtype).view_as(x)


class FusedSelfAttention(SelfAttention):
    """Megatron's SelfAttention with torch's fused attention as its core.

    Weights, their names and their tensor-parallel sharding are Megatron's.
    """

    def __init__(self, *args, architecture: Architecture, **kwargs):
        super().__init__(*args, **kwargs)
        self.core_attention = IdentityOp()  # unused, and without weights
        if architecture.qk_norm_over_heads:
            queries, keys = self.query_projection_size, self.kv_projection_size
            self.q_layernorm, self.k_layernorm = (
                NormOverHeads(size, architecture.norm_epsilon) for size in (queries, keys)
            )
        layer = self.layer_number - 1  # Megatron counts from 1, over all pipeline stages
        slides = layer in architecture.sliding_layers
        self.window = architecture.sliding_window if slides else None
        self.scale, self.softcap = architecture.attention_scale, architecture.attention_softcap
        self.frequencies = None  # a plain attribute: a buffer would be rounded to bf16 with the weights
        if layer not in architecture.nope_layers:
            self.frequencies = rotary_frequencies(architecture, slides).to(cpu.DEVICE)
            self.rotary_factor = rotary_factor(architecture, slides)

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        inference_context=None,
        packed_seq_params=None,
        **_,
    ):
        """Causal attention: hidden_states [S, B, H] → ([S, B, H], bias), in the model's dtype.

        With an Unpadding as packed_seq_params: [T, 1, H] → ([T, 1, H], bias). attention_mask is ignored, because under a causal
        mask right padding changes no real token. With selective recomputation, the backward pass recomputes every step between
        the projections: norms, rotary positions, padding and attention.
        """
        projected, sizes = self.get_query_key_value_tensors(hidden_states, split_qkv=False)
        arguments = projected, sizes, inference_context, packed_seq_params
        if self.training and self.config.recompute_granularity == "selective":
            # no step between the projections draws random numbers
            context = checkpoint(self._attend, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            context = self._attend(*arguments)
        return self.linear_proj(context)

    def _attend(self, projected, sizes, cache, unpadding) -> torch.Tensor:
        """All steps between the projections: queries, keys and values of each group [S, B, G, (N/G + 2) D] → [S, B, N D].

        sizes: the widths of queries, keys and values. In bf16 the rotary positions are applied in float32. On a CPU the
        attention is also computed in float32: torch has several CPU kernels for bf16, which round differently, so generation
        and training would disagree.
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
            cos, sin = angles.cos() * self.rotary_factor, angles.sin() * self.rotary_factor
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
    """The keys to which each query attends: bool [S, K]. queries, keys: columns, int64 [S] and [K]. window: W, or None."""
    behind = queries[:, None] - keys
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)


def masked_attention(query, keys, values, mask, scale=None, softcap=None) -> torch.Tensor:
    """Attention under a mask: query [B, N, S, D], keys and values [B, G, K, D], mask bool [B or 1, 1, S, K] → [B, N, S, D].

    scale: factor of the scores; None: 1 / √D. softcap: c, with which scores s become c · tanh(s / c); None: no soft cap.

    On CUDA, the fused kernels with a mask do not support grouped heads, so torch would compute all scores, [B, N, S, K], with
    unfused attention. For a prompt, keys and values are therefore expanded to the query's heads. For a single new token they
    are not expanded: each head has only K scores, and an expanded cache would be larger.
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
