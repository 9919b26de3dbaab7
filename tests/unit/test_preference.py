"""The losses that learn from pairs, by hand. megatron/test_trl.py compares their gradients with TRL's."""

import math

import pytest
import torch

from aligner_lib.algorithms import preference
from aligner_lib.algorithms.preference import PairLogprobs, dpo_loss

LN3 = math.log(3)  # σ(ln 3) = 3/4, σ(−ln 3) = 1/4


def pair(chosen: float, rejected: float) -> PairLogprobs:
    return PairLogprobs(*torch.tensor([[chosen], [rejected]], dtype=torch.float64))


def test_a_policy_that_is_its_reference_has_a_loss_of_ln_2():
    equal = pair(-7.25, -3.5)
    assert dpo_loss(*equal, *equal, 0.3).item() == math.log(2)
    for loss in (preference.conservative_dpo_loss, preference.robust_dpo_loss):
        assert loss(equal.minus(equal), 0.3, 0.2).item() == math.log(2)


# β = 1/2, and the chosen response gained ln 9 over the rejected one: β h = ln 3
RATIOS = pair(math.log(9) - 1.0, -1.0)
POLICY, REFERENCE = pair(math.log(9) - 13.0, -10.0), pair(-12.0, -9.0)


@pytest.mark.parametrize(
    "loss, expected",
    [
        (dpo_loss(*POLICY, *REFERENCE, 0.5), math.log(4 / 3)),
        (preference.conservative_dpo_loss(RATIOS, 0.5, 0.25), 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
        (preference.robust_dpo_loss(RATIOS, 0.5, 0.25), (0.75 * math.log(4 / 3) - 0.25 * math.log(4)) / 0.5),
        (preference.ipo_loss(RATIOS, 0.5), (math.log(9) - 1.0) ** 2),
        (preference.simpo_loss(RATIOS, 0.5, 0.0), math.log(4 / 3)),
        (preference.simpo_loss(RATIOS, 0.5, 2 * LN3), math.log(4)),  # a margin of 2 ln 3 where ln 3 is there
        # p = 3/4 and 1/2, so the odds are 3 and 1
        (preference.orpo_loss(pair(math.log(3 / 4), math.log(1 / 2)), 0.5), 1.5 * math.log(4 / 3)),
    ],
    ids=["dpo", "cdpo", "robust", "ipo", "simpo", "simpo with a margin", "orpo"],
)
def test_each_loss_by_hand(loss, expected):
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_kto_by_hand():
    ratios = torch.tensor([LN3, LN3, 0.5 + LN3], dtype=torch.float64)
    desirable, kl = torch.tensor([True, False, True]), torch.tensor(0.5, dtype=torch.float64)
    without = preference.kto_loss(ratios, desirable, torch.tensor(0.0), beta=1.0)
    assert without[:2].tolist() == pytest.approx([1 / 4, 3 / 4])
    assert preference.kto_loss(ratios, desirable, kl, beta=1.0)[2].item() == pytest.approx(1 / 4)


def test_a_conservative_loss_has_its_least_value_at_a_finite_margin():
    """At σ(β h) = 1 − ε the loss is the labels' own entropy."""
    losses = [preference.conservative_dpo_loss(pair(h, 0.0), 1.0, 0.25).item() for h in (0.0, LN3, 3.0, 9.0)]
    assert min(losses) == losses[1] == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_orpo_of_a_certain_response_has_a_finite_loss_and_gradient():
    chosen, rejected = (torch.tensor([value], requires_grad=True) for value in (0.0, -1.0))
    for pair in (PairLogprobs(chosen, rejected), PairLogprobs(rejected, chosen)):
        loss = preference.orpo_loss(pair, 0.1).sum()
        gradients = torch.autograd.grad(loss, (chosen, rejected))
        assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients)
