"""Attention over a cache by calls that a fused kernel can take. Its numbers: test_families.py."""

import pytest
import torch
import torch.nn.functional as F

from aligner_lib.megatron.attention import masked_attention

pytestmark = pytest.mark.megatron


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
