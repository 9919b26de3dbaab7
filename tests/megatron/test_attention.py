"""Attention over a cache: the same numbers for grouped heads, by a call that a fused kernel can take."""

import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.megatron.attention import KVCache, masked_attention
from aligner_lib.megatron.generate import Sampling, generate

pytestmark = pytest.mark.megatron

HEADS, GROUPS, SIZE = 4, 2, 8
UNSAID = 1  # as the stop token it ends nothing here


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("new_tokens", [1, 5])
@pytest.mark.parametrize(("scale", "softcap"), [(None, None), (0.7, 2.0)])
def test_grouped_heads_under_a_mask_by_softmax(new_tokens, scale, softcap):
    cache = KVCache(starts=torch.tensor([0, 2]), columns=7)
    cache.sequence_len_offset = 7 - new_tokens
    cache.prepare(new_tokens)
    mask = cache.masks[None]
    query = 4 * randn(2, HEADS, new_tokens, SIZE)
    keys, values = randn(2, GROUPS, 7, SIZE), 2 * randn(2, GROUPS, 7, SIZE)
    attended = masked_attention(query, keys, values, mask, scale, softcap)
    for head in range(HEADS):
        key, value = keys[:, head // 2], values[:, head // 2]  # two heads to a group
        scores = (scale or SIZE**-0.5) * query[:, head] @ key.transpose(1, 2)
        scores = softcap * (scores / softcap).tanh() if softcap else scores
        scores = scores.masked_fill(~mask[:, 0], -torch.inf)
        torch.testing.assert_close(attended[:, head], scores.softmax(dim=-1) @ value)


@given(
    length=st.integers(1, 9),
    new_tokens=st.integers(1, 9),
    padding=st.integers(0, 8),
    window=st.none() | st.integers(1, 9),
)
def test_a_token_sees_itself_and_what_lies_less_than_a_window_behind(length, new_tokens, padding, window):
    new_tokens, padding = min(new_tokens, length), min(padding, length - 1)
    cache = KVCache(torch.tensor([padding]), length)
    cache.sequence_len_offset = length - new_tokens
    cache.prepare(new_tokens, [window])
    [[seen]] = cache.masks[window].tolist()
    for query, row in zip(range(length - new_tokens, length), seen, strict=True):
        reach = range(max(0, query - window + 1) if window else 0, query + 1)
        expected = {key for key in reach if key >= padding} | {query}
        assert {key for key, visible in enumerate(row) if visible} == expected


def test_no_prompt_needs_a_table_of_scores(starts, one_process, monkeypatch):
    """The fused kernels that take a mask take no grouped heads: torch would compute S × S scores for them."""
    calls, attention = [], F.scaled_dot_product_attention

    def noted(query, key, value, **options):
        masked = options.get("attn_mask") is not None
        calls.append((query.shape[2], masked, query.shape[1] == key.shape[1], options.get("enable_gqa")))
        return attention(query, key, value, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    module = tiny.new_engine("untied", starts / "untied").module
    generate(module, [[5, 6, 7], [8]], [0, 1], Sampling(max_length=3, greedy=True), stop_ids=[UNSAID])
    prompt, *decoded = (calls[i : i + 4] for i in range(0, len(calls), 4))  # four layers
    assert prompt == [(3, True, True, False)] * 4
    assert decoded == [[(1, True, False, True)] * 4] * 2  # one row of scores; the cache is not copied
