"""The mathematics on tables small enough to check by hand: prompts of 2 tokens, responses of up to 3."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from aligner_lib.algorithms.ppo import (
    advantages_and_returns,
    clipped_surrogate,
    critic_loss,
    masked_mean,
    normalize,
    response_mask,
    rewards_with_kl,
)
from aligner_lib.algorithms.preference import centering_loss, preference_accuracy, preference_loss
from aligner_lib.algorithms.schedule import learning_rate


def table(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_the_mask_covers_the_response_with_its_stop_token():
    # five tokens are four predictions; prompt 2 and length 5: predictions 1, 2, 3, of tokens 2, 3, 4
    mask = response_mask(torch.tensor([2, 2, 1]), torch.tensor([5, 3, 5]), size=4)
    assert_close(mask, table([0, 1, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]).bool())


def test_the_masked_mean_is_of_each_row_s_masked_values_alone():
    means = masked_mean(table([1, 2, 9], [1, 2, 9], [4, 5, 6]), table([1, 1, 0], [0, 0, 0], [0, 0, 1]))
    assert means.tolist() == [1.5, 0.0, 6.0]


def test_the_score_stands_at_the_last_token_and_the_kl_at_every_token():
    kl = table([0, 1, 2, 4, 0], [0, 1, 0, 0, 0], [1, 0, 0, 2, 0])
    mask = table([0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [1, 0, 0, 1, 0])  # the third has two turns
    rewards = rewards_with_kl(torch.tensor([10.0, -7.0, 3.0]), kl, mask, coefficient=0.5)
    assert_close(rewards, table([0, -0.5, -1, 8, 0], [0, -7.5, 0, 0, 0], [-0.5, 0, 0, 2, 0]))


def test_advantages_by_hand():
    values, rewards, mask = table([9, 1, 2, 3]), table([9, 0, 0, 5]), table([0, 1, 1, 1])
    advantages, returns = advantages_and_returns(values, rewards, mask, discount_factor=1.0, gae_lambda=0.5)
    # surprises, last first: 5 - 3 = 2;  0 + 3 - 2 = 1;  0 + 2 - 1 = 1
    # advantages: 2;  1 + 2/2 = 2;  1 + 2/2 = 2;  what lies before the mask counts nowhere
    assert_close(advantages, table([0, 2, 2, 2]))
    assert_close(returns, table([0, 3, 4, 5]))
    discounted, _ = advantages_and_returns(table([0, 4]), table([0, 8]), table([1, 1]), 0.5, gae_lambda=1.0)
    # last: 8 - 4 = 4; first: 0 + 0.5 * 4 - 0 + 0.5 * 4 = 4
    assert_close(discounted, table([4, 4]))
    # no bootstrap after the last token, also where the row is as wide as the table
    cut_off, _ = advantages_and_returns(table([0, 0, 7]), table([0, 0, 0]), table([1, 1, 1]), 1.0, 0.0)
    assert_close(cut_off, table([0, 7, -7]))


finite = st.floats(-10, 10, width=32)


@given(
    st.lists(st.tuples(finite, finite, st.booleans()), min_size=1, max_size=10),
    st.floats(0, 1, width=32),
    st.floats(0, 1, width=32),
)
def test_advantages_are_those_of_the_response_tokens_alone(tokens, discount, gae_lambda):
    values, rewards = (torch.tensor([column]) for column in list(zip(*tokens))[:2])
    mask = torch.tensor([[counts for *_, counts in tokens]])
    whole = advantages_and_returns(values, rewards, mask, discount, gae_lambda)
    own = (values[mask][None], rewards[mask][None], torch.ones(1, int(mask.sum())))
    alone = advantages_and_returns(*own, discount, gae_lambda) if mask.any() else (torch.zeros(1, 0),) * 2
    for with_holes, without in zip(whole, alone):
        assert torch.equal(with_holes[mask][None], without)
        assert not with_holes[~mask].any()


def test_normalised_advantages_by_hand():
    # masked: 1, 3, 5; mean 3, uncorrected variance 8/3
    normal = normalize(table([1, 3, 99], [5, 99, 99]), table([1, 1, 0], [1, 0, 0]))
    unit = 2 / math.sqrt(8 / 3)
    assert_close(normal, table([-unit, 0, 0], [unit, 0, 0]))
    for mask in ([1, 1], [0, 0]):
        assert_close(normalize(table([2, 2]), table(mask)), table([0, 0]))


def test_normalisation_takes_all_ranks_together():
    advantages, mask = table([1, 3, 99], [5, 4, 2], [7, 0, 0]), table([1, 1, 0], [1, 1, 1], [1, 0, 0])
    whole = normalize(advantages, mask)
    shares = on_ranks(lambda rank, total: normalize(advantages[rank::2], mask[rank::2], total), ranks=2)
    for rank, share in enumerate(shares):
        assert_close(share, whole[rank::2])


def on_ranks(work, ranks: int) -> list:
    """work(rank, sum over ranks) on threads that stand for processes."""
    barrier, given_in = threading.Barrier(ranks, timeout=10), [None] * ranks

    def rank_work(rank: int):
        def total(tensor: torch.Tensor) -> torch.Tensor:
            given_in[rank] = tensor
            barrier.wait()
            result = sum(given_in)
            barrier.wait()
            return result

        return work(rank, total)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(rank_work, range(ranks)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "learns"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.6, False),  # good and already likelier: the gain stops at 1.3
        (0.5, 2.0, -1.0, True),  # good and less likely: not clipped, so that it can come back
        (1.5, -2.0, 3.0, True),  # bad and likelier: not clipped
        (0.5, -2.0, 1.6, False),  # bad and already less likely: the gain stops at 0.8
    ],
)
def test_the_clip_takes_the_pessimistic_side_and_only_the_gain_side_has_no_gradient(
    ratio, advantage, loss, learns
):
    ratios = torch.tensor([ratio], requires_grad=True)
    losses, clipped = clipped_surrogate(ratios, torch.tensor([advantage]), 0.2, 0.3)
    assert losses.item() == pytest.approx(loss)
    assert clipped.item() == pytest.approx(min(max(ratio, 0.8), 1.3))
    losses.sum().backward()
    assert (ratios.grad.item() != 0) == learns


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss"),
    [
        (1.0, 0.0, 3.0, 0.0, 2.0),  # half of (3 - 1)²; no clip
        (1.0, 0.0, 3.0, -1.0, 2.0),
        (1.0, 0.0, 3.0, 0.5, 3.125),  # held at 0.5: half of 2.5²
        (1.0, 0.0, 0.0, 0.5, 0.5),  # held would be nearer: the worse one counts
        (1.0, 0.8, 3.0, 0.5, 2.0),  # within the clip
    ],
)
def test_the_value_loss_and_its_clip(value, old, target, clip, loss):
    numbers = (torch.tensor([number]) for number in (value, old, target))
    assert critic_loss(*numbers, clip=clip).item() == pytest.approx(loss)


def test_the_preference_loss_by_hand():
    # equal scores give ln 2 and no success; far scores stay finite
    chosen = torch.tensor([math.log(3), 0.0, 5.0, 1e4, -1e4])
    rejected = torch.tensor([0.0, math.log(3), 5.0, 0.0, 0.0])
    losses = torch.tensor([math.log(4 / 3), math.log(4), math.log(2), 0.0, 1e4])
    assert_close(preference_loss(chosen, rejected), losses)
    assert preference_accuracy(chosen, rejected).tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]


def test_centering_is_the_mean_square_over_a_text_s_tokens():
    rewards = torch.tensor([[1.0, 2.0], [-3.0, 0.0], [50.0, 4.0]], requires_grad=True)
    losses = centering_loss(rewards, torch.tensor([2, 3]))
    assert_close(losses, torch.tensor([(1 + 9) / 2, (4 + 16) / 3]))
    losses.sum().backward()
    assert rewards.grad[2, 0] == 0, "padding holds nothing"


def test_the_rate_warms_up_peaks_and_decays():
    settings = {"peak": 1.0, "max_steps": 6, "warmup_steps": 1, "constant_steps": 1, "min_lr": 0.2}
    # one step at half the peak, four of a half cosine from 1 to 0.2, then 0.2
    cosine = [0.2 + 0.4 * (1 + math.cos(math.pi * i / 4)) for i in range(5)]
    assert [learning_rate(step, **settings) for step in range(1, 8)] == pytest.approx([0.5, *cosine, 0.2])
    settings = {"peak": 3.0, "max_steps": 4, "warmup_steps": 2, "name": "constant"}
    assert [learning_rate(step, **settings) for step in (1, 2, 3, 4, 99)] == [1, 2, 3, 3, 3]
    with pytest.raises(ValueError, match=r"'linear'.*CosineAnnealing or constant"):
        learning_rate(2, peak=1.0, max_steps=4, name="linear")


@given(st.integers(1, 50), st.integers(0, 60), st.integers(0, 20), st.floats(0, 2))
def test_the_rate_lies_between_its_bounds_and_falls_after_the_warm_up(max_steps, warmup, constant, min_lr):
    settings = {"max_steps": max_steps, "warmup_steps": warmup, "constant_steps": constant, "min_lr": min_lr}
    rates = [learning_rate(step, peak=1.0, **settings) for step in range(1, max_steps + 2)]
    assert all(0 < rate <= 1 or rate == min(min_lr, 1) for rate in rates)
    assert all(a >= b for a, b in pairwise(rates[warmup:]))
