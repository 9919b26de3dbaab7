"""Attention over a cache: what a token sees, and calls that a fused kernel can take."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.megatron.attention import KVCache, masked_attention

pytestmark = pytest.mark.megatron


@settings(max_examples=30)
@given(
    length=st.integers(1, 9),
    new_tokens=st.integers(1, 9),
    padding=st.integers(0, 8),
    window=st.none() | st.integers(1, 9),
)
def test_a_token_sees_itself_and_what_lies_less_than_a_window_behind(length, new_tokens, padding, window):
    """Padding sees itself, too: a softmax over nothing would be NaN."""
    new_tokens, padding = min(new_tokens, length), min(padding, length - 1)
    cache = KVCache(torch.tensor([padding]), length)
    cache.sequence_len_offset = length - new_tokens
    cache.prepare(new_tokens, [window])
    [[seen]] = cache.masks[window].tolist()
    for query, row in zip(range(length - new_tokens, length), seen, strict=True):
        reach = range(max(0, query - window + 1) if window else 0, query + 1)
        expected = {key for key in reach if key >= padding} | {query}
        assert {key for key, visible in enumerate(row) if visible} == expected


def test_only_a_single_new_token_is_attended_to_with_grouped_heads(monkeypatch):
    """The fused kernels that take a mask take no grouped heads: torch would compute S × S scores of a prompt."""
    grouped = []
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda query, keys, values, **_: grouped.append(query.shape[1] != keys.shape[1]),
    )
    for new_tokens in (3, 1):
        query, keys = torch.zeros(1, 4, new_tokens, 8), torch.zeros(1, 2, 5, 8)
        masked_attention(query, keys, keys, mask=None)
    assert grouped == [False, True]
