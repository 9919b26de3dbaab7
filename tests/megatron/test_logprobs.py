"""Log-probabilities and entropies against torch's own, with gradients. test_layouts splits them over two ranks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from aligner_lib.megatron.logprobs import logprobs_and_entropy, selected_logprobs, token_logprobs


def by_torch(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    every = logits.log_softmax(dim=-1)
    return every[torch.arange(len(targets)), targets], -(every.exp() * every).sum(dim=-1)


@given(st.integers(0, 6), st.integers(1, 12), st.floats(0.1, 50), st.integers(0, 99))
def test_values_and_gradients_are_torch_s(count, vocabulary, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, vocabulary, generator=generator)
    targets = torch.randint(0, vocabulary, (count,), generator=generator)
    weights = torch.randn(2, count, generator=generator)
    gradients, values = [], []
    for function in (by_torch, logprobs_and_entropy):
        leaf = logits.clone().requires_grad_()
        logprobs, entropy = function(leaf * 1, targets)
        (weights[0] * logprobs + weights[1] * entropy).sum().backward()
        gradients.append(leaf.grad)
        values.append(torch.stack([logprobs, entropy]).detach())
    assert_close(values[1], values[0], atol=1e-4, rtol=1e-5)
    assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-5)


class Table:
    """A model whose hidden states are its logits."""

    def logits(self, hidden):
        return hidden


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("rows", [2, 256], ids=["in three parts", "at once"])
def test_without_gradients_the_numbers_are_the_same(monkeypatch, rows):
    monkeypatch.setattr("aligner_lib.megatron.logprobs.ROWS_ON_CPU", rows)
    hidden = 3 * torch.randn(4, 2, 7, generator=torch.Generator().manual_seed(0))  # [S, B, V]
    tokens = torch.tensor([[0, 1, 2, 3], [0, 6, 5, 4]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    expected = selected_logprobs(Table(), tokens, hidden.clone(), mask, temperature=0.7, with_entropy=True)
    with torch.no_grad():
        logprobs, none = selected_logprobs(Table(), tokens, hidden.clone(), mask, temperature=0.7)
        both = selected_logprobs(Table(), tokens, hidden.clone(), mask, temperature=0.7, with_entropy=True)
    assert none is None
    assert_close((logprobs, both[1]), expected)
    assert torch.equal(both[0], logprobs)


def test_log_probabilities_alone_and_their_gradients_are_those_of_divided_logits():
    logits, targets = (
        torch.randn(4, 7, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 6, 3, 3]),
    )
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    ours = token_logprobs(leaves[0] * 1, targets, None, 0.7)
    torchs = by_torch(leaves[1] / 0.7, targets)[0]
    (ours.sum() + torchs.sum()).backward()
    assert_close(ours, torchs)
    assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.usefixtures("one_process")
def test_a_temperature_divides_logits_of_bf16_in_float32():
    logits = torch.tensor([[[3.0, 1.0]], [[0.0, 0.0]]], dtype=torch.bfloat16)  # [S, B, V]
    tokens, mask = torch.tensor([[0, 0]]), torch.tensor([[True]])
    logprobs, _ = selected_logprobs(Table(), tokens, logits, mask, temperature=0.9)
    # −ln(1 + e^(−2/0.9)); 3/0.9 and 1/0.9 are 3.328 and 1.109 in bf16
    assert logprobs.item() == pytest.approx(-math.log1p(math.exp(-2 / 0.9)), abs=1e-6)


def test_huge_logits_stay_finite():
    logprobs, entropy = logprobs_and_entropy(torch.tensor([[1e4, -1e4, 0.0]]), torch.tensor([1]))
    assert logprobs.item() == -2e4
    assert entropy.item() == 0


def test_a_second_backward_is_refused():
    logits = torch.zeros(1, 2, requires_grad=True)
    logprobs = token_logprobs(logits * 1, torch.tensor([0])).sum()
    logprobs.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="one backward only"):
        logprobs.backward()
