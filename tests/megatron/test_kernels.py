"""The written-out gradients against finite differences, and the values against torch's own functions and by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from aligner_lib.megatron.kernels import (
    PART,
    LayerNorm,
    RMSNorm,
    embedding,
    float32_product,
    rotate,
    squared_relu,
    swiglu,
)


def randn(*shape, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), **options)


def doubles(*shape):
    return randn(*shape, dtype=torch.float64, requires_grad=True)


def test_norms_by_hand():
    row = torch.tensor([[1.0, 7.0]])  # mean square 25; mean 4, deviation 3
    for zero_centered, weight in ((False, [1.0, 10.0]), (True, [0.0, 9.0])):
        norm = RMSNorm(2, eps=0.0, zero_centered=zero_centered)
        norm.weight.data = torch.tensor(weight)
        assert torch.equal(norm(row), torch.tensor([[0.2, 14.0]]))
    norm = LayerNorm(2, eps=0.0, zero_centered=True)
    norm.weight.data, norm.bias.data = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.0])
    assert torch.equal(norm(row), torch.tensor([[-0.5, 2.0]]))
    assert torch.equal(LayerNorm(2, eps=0.0)(row), torch.tensor([[-1.0, 1.0]]))


def test_in_bfloat16_a_zero_centered_weight_keeps_its_digits():
    norm = RMSNorm(2, eps=0.0, zero_centered=True).bfloat16()
    norm.weight.data[:] = 2.0**-9  # 1 + 2⁻⁹ is 1 in bfloat16
    long = torch.full((1, 2), 255.0).bfloat16()
    assert norm(long).dtype == torch.bfloat16
    whole = RMSNorm(2, eps=0.0, zero_centered=True)
    whole.weight.data[:] = 2.0**-9
    assert torch.equal(norm(long), whole(long.float()).bfloat16())


def test_activations_by_hand():
    assert torch.equal(squared_relu(torch.tensor([-2.0, 0.0, 3.0])), torch.tensor([0.0, 0.0, 9.0]))
    gate, up = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 5.0]])
    assert torch.equal(swiglu(torch.cat([gate, up], dim=-1)), F.silu(gate) * up)


def test_gradients_against_finite_differences():
    norm = RMSNorm(6, eps=1e-3).double()
    assert gradcheck(
        lambda x, weight: torch.func.functional_call(norm, {"weight": weight}, x),
        (doubles(3, 2, 6), doubles(6)),
    )
    assert gradcheck(swiglu, (doubles(4, 1, 6),))
    angles = doubles(4, 1, 3).detach()
    for width in (6, 10):  # all of a head, and a part of it
        assert gradcheck(lambda x: rotate(x, angles.cos(), angles.sin()), (doubles(4, 2, width),))


def test_rotate_turns_each_pair_by_its_angle_and_leaves_the_rest_of_a_head():
    angles = torch.tensor([0.0, torch.pi / 2])  # D = 4: pairs (0, 2) and (1, 3)
    turned = rotate(torch.tensor([1.0, 2.0, 3.0, 4.0]), angles.cos(), angles.sin())
    torch.testing.assert_close(turned, torch.tensor([1.0, -4.0, 3.0, 2.0]))
    x, angle = randn(3, 1, 10), torch.full((3, 1, 2), torch.pi / 2)
    turned = rotate(x, angle.cos(), angle.sin())
    torch.testing.assert_close(turned, torch.cat([-x[..., 2:4], x[..., :2], x[..., 4:]], dim=-1))
    heads, angles = randn(5, 2, 3, 8).transpose(1, 2), randn(5, 1, 1, 4)  # heads that are views
    both = [rotate(each, angles.cos(), angles.sin()) for each in (heads, heads.contiguous())]
    assert torch.equal(*both)


def test_an_embeddings_gradient_goes_to_the_rows_that_were_taken():
    table, ids = randn(6, 2), torch.tensor([[1, 4], [1, 0]])
    plain, summed = (table.clone().requires_grad_() for _ in range(2))
    summed.main_grad = torch.ones(6, 2)  # of the micro batches before
    for weight in (plain, summed):
        embedding(ids, weight).square().sum().backward()
    assert summed.grad is None
    torch.testing.assert_close(summed.main_grad, 1 + plain.grad)
    assert torch.equal(summed.main_grad[[2, 3, 5]], torch.ones(3, 2))


@pytest.mark.parametrize("rows", [1, 300])
def test_logits_of_bf16_numbers_are_sums_in_float32(rows):
    x, weight = randn(rows, 24).bfloat16(), randn(2 * PART + 3, 24).bfloat16()
    logits = float32_product(x, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), x.double() @ weight.double().t(), rtol=0, atol=1e-5)
