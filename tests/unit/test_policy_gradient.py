"""One objective with seven switches: each named algorithm against a formula that is written from its paper alone."""

import math
import statistics
from dataclasses import replace

import pytest
import torch

from aligner_lib.algorithms import policy_gradient as pg
from aligner_lib.algorithms.objective import PRESETS, Objective
from aligner_lib.algorithms.policy_gradient import group_advantages, kl_loss
from aligner_lib.config.compose import compose
from aligner_lib.kinds.policy_gradient.recorded_rollout import rollout_of

REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 5.0, 5.0], dtype=torch.float64)
GROUP = torch.tensor([7, 7, 7, 7, 2, 2])


@pytest.mark.parametrize(
    "baseline, expected",
    [
        ("group_mean", [0.5, -0.5, -0.5, 0.5, 0, 0]),
        ("leave_one_out", [2 / 3, -2 / 3, -2 / 3, 2 / 3, 0, 0]),  # 1 against the mean of 0, 0, 1
        ("batch_mean", [-1, -2, -2, -1, 3, 3]),
    ],
)
def test_the_baseline_of_a_reward(baseline, expected):
    assert group_advantages(REWARDS, GROUP, baseline, "none").tolist() == pytest.approx(expected)


def test_grpo_s_advantages_in_any_order():
    order = torch.tensor([4, 0, 5, 3, 1, 2])
    high = 0.5 / (3**-0.5 + 1e-4)  # 1 of 1, 0, 0, 1, whose deviation is 1 / √3
    expected = [0, high, 0, high, -high, -high]
    assert pg.grpo_advantages(REWARDS[order], GROUP[order]).tolist() == pytest.approx(expected)


def test_another_formula_sees_only_the_responses_with_a_reward():
    rewards = torch.tensor([0.0, 1.0, math.nan])
    positions = lambda rewards, group: torch.arange(len(rewards)).float()  # noqa: E731
    advantages = group_advantages(rewards, torch.zeros(3).long(), "group_mean", "group_std", positions)
    assert advantages.tolist() == [0, 1, 0]


def test_a_response_without_others_without_differences_or_without_a_reward_learns_nothing():
    assert pg.grpo_advantages(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 1, 1]))[0] == 0
    for baseline in ("group_mean", "leave_one_out"):
        assert group_advantages(torch.tensor([3.0]), torch.tensor([0]), baseline, "group_std").tolist() == [0]
    alike = torch.full((3,), 0.1)  # rounding makes no advantage
    assert group_advantages(alike, torch.zeros(3), "group_mean", "group_std").tolist() == [0, 0, 0]
    mask = torch.ones(3, 2, dtype=torch.bool)
    assert not pg.reinforce_pp_advantages(alike, torch.ones(3, 2), mask, 0.0).any()
    rewards, group = torch.tensor([1.0, math.nan, 0.0, math.nan]), torch.tensor([0, 0, 0, 1])
    assert group_advantages(rewards, group, "group_mean", "none").tolist() == [0.5, 0, -0.5, 0]


def test_gdpo_s_advantages_are_trl_s():
    """multi_objective_aggregation="normalize_then_sum", written from TRL's definition (pull request 4785) for whole groups."""
    generator = torch.Generator().manual_seed(3)
    rewards = torch.rand(6, 4, 3, generator=generator, dtype=torch.float64) * torch.tensor([1, 100, 0.01])
    rewards[2, :, 1] = 0.1  # a group that is alike in one reward
    weights = torch.tensor([1, 0.5, -2], dtype=torch.float64)
    each = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    summed = (each * weights).sum(dim=2).flatten()
    expected = (summed - summed.mean()) / (summed.std() + 1e-4)
    group = torch.arange(6).repeat_interleave(4)
    advantages = pg.gdpo_advantages(rewards.flatten(0, 1), weights.expand(24, 3), group)
    torch.testing.assert_close(advantages, expected, atol=1e-9, rtol=0)


def test_gdpo_learns_nothing_from_groups_that_are_alike_and_from_responses_without_a_reward():
    """The 5 of the response without a second reward is compared with nothing."""
    rewards = torch.tensor([[0.1, 0.7], [0.1, 0.7], [0.0, 1.0], [1.0, 1.0], [5.0, math.nan]])
    advantages = pg.gdpo_advantages(rewards, torch.ones(5, 2), torch.tensor([0, 0, 1, 1, 1])).tolist()
    assert advantages[:2] == [0, 0] and advantages[4] == 0
    assert advantages[3] == -advantages[2] > 0


LENGTHS = [3, 1, 4, 2]
R = torch.tensor([1.0, 0.0, 0.0, 0.5], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1])
CONSTANT = 8


def draw(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [-3 * torch.rand(n, generator=generator, dtype=torch.float64) - 0.1 for n in LENGTHS]


NEW, OLD, REFERENCE = draw(0), draw(1), draw(2)


def ours(name: str, logprobs: list[torch.Tensor]) -> torch.Tensor:
    objective = PRESETS[name]
    rows = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
    lengths = torch.tensor(LENGTHS)
    flat, old, reference = (torch.cat(parts) for parts in (logprobs, OLD, REFERENCE))
    advantages = group_advantages(R, GROUPS, objective.baseline, objective.scale)[rows]
    losses, _, _ = pg.policy_loss(flat, old, advantages, rows, lengths, objective)
    if objective.kl in ("k1", "k2", "k3"):
        losses = losses + 0.1 * kl_loss(flat, reference, objective.kl)
    weights = pg.token_weights(lengths, objective.normalizer, CONSTANT, responses=4, tokens=10, learnt=10)
    return (losses * weights[rows]).mean()


def others(i: int) -> list[float]:
    """The rewards of the other responses in a response's group."""
    return [R[j].item() for j in range(4) if GROUPS[j] == GROUPS[i] and j != i]


def centred(i: int) -> float:
    return R[i].item() - statistics.fmean([R[i].item(), *others(i)])


def standardised(i: int) -> float:
    return centred(i) / (statistics.stdev([R[i].item(), *others(i)]) + 1e-4)


def ratio(i: int, logprobs):
    return torch.exp(logprobs - OLD[i])


def clipped(ratio, advantage: float, low: float = 0.2, high: float = 0.2):
    return torch.min(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)


# Each paper's objective is a sum over the responses; a function gives the term of response i, whose tokens have `own`.


def grpo(i, own):
    """Equation 3 of arXiv:2402.03300, with the KL estimate of its equation 4."""
    kl = torch.exp(REFERENCE[i] - own) - (REFERENCE[i] - own) - 1
    return (clipped(ratio(i, own), standardised(i)) - 0.1 * kl).sum() / len(own) / 4


def dr_grpo(i, own):
    """arXiv:2503.20783, section 3.2: no standard deviation, a constant in place of the length."""
    return clipped(ratio(i, own), centred(i)).sum() / (4 * CONSTANT)


def dapo(i, own):
    """Equation 8 of arXiv:2503.14476."""
    return clipped(ratio(i, own), standardised(i), high=0.28).sum() / sum(LENGTHS)


def rloo(i, own):
    """arXiv:2402.14740, equation 7 (the KL is in the reward): REINFORCE against the other responses' mean."""
    return (R[i].item() - statistics.fmean(others(i))) * own.sum() / (4 * CONSTANT)


def reinforce_pp(i, own):
    """arXiv:2501.03262: PPO's clip on advantages that are normalised over the batch."""
    advantage = (R[i].item() - statistics.fmean(R.tolist())) / (statistics.stdev(R.tolist()) + 1e-4)
    return clipped(ratio(i, own), advantage).sum() / sum(LENGTHS)


def gspo(i, own):
    """Equations 5 and 7 of arXiv:2507.18071."""
    return clipped(torch.exp((own - OLD[i]).sum() / len(own)), standardised(i), 3e-4, 4e-4) / 4


def cispo(i, own):
    """Equation 4 of arXiv:2506.13585."""
    return (ratio(i, own).detach().clamp(0.0, 1.28) * standardised(i) * own).sum() / sum(LENGTHS)


@pytest.mark.parametrize(
    "paper", [grpo, dr_grpo, dapo, rloo, reinforce_pp, gspo, cispo], ids=lambda f: f.__name__
)
def test_a_preset_is_its_paper_s_formula(paper):
    def theirs(logprobs):
        return -sum(paper(i, own) for i, own in enumerate(logprobs))

    results = []
    for loss_of in (lambda logprobs: ours(paper.__name__, logprobs), theirs):
        logprobs = [x.clone().requires_grad_() for x in NEW]
        loss = loss_of(logprobs)
        loss.backward()
        results.append((loss.detach(), torch.cat([x.grad for x in logprobs])))
    torch.testing.assert_close(results[0], results[1], atol=1e-7, rtol=1e-6)
    assert results[0][1].abs().max() > 1e-3  # there is something to compare


@pytest.mark.parametrize("normalizer", ["responses", "tokens", "constant"])
def test_responses_without_an_advantage_can_be_left_out_of_the_sum(normalizer):
    """Two of four responses have no advantage, so the sum over the other two is the sum over all."""
    lengths, losses = torch.tensor(LENGTHS), torch.tensor([1.0, 2.0, 0.0, 0.0])  # a token's, by response
    whole = pg.token_weights(lengths, normalizer, CONSTANT, responses=4, tokens=10, learnt=10)
    part = pg.token_weights(lengths[:2], normalizer, CONSTANT, responses=4, tokens=10, learnt=4)
    with_all = (whole * losses * lengths).sum() / 10
    assert (part * losses[:2] * lengths[:2]).sum().item() / 4 == pytest.approx(with_all.item())


def test_shaped_rewards_by_hand():
    rewards, lengths = torch.tensor([5.0, 1.0, -3.0, 0.0]), torch.tensor([10, 16, 18, 20])
    finished = torch.tensor([True, True, True, False])
    clip, penalty, ramp = (
        {"clip": 2.0},
        {"missing_eos_penalty": 0.5},
        {"max_length": 20, "overlong_buffer": 4},
    )
    assert pg.shaped_rewards(rewards, lengths, finished, **clip).tolist() == [2, 1, -2, 0]
    assert pg.shaped_rewards(rewards, lengths, finished, **penalty).tolist() == [5, 1, -3, -0.5]
    assert pg.shaped_rewards(torch.zeros(4), lengths, finished, **ramp).tolist() == [0, 0, -0.5, -1]
    two_rewards, equal = torch.stack([rewards, torch.ones(4)], dim=1), torch.ones(4, 2)
    terms, weights = pg.shaped_terms(two_rewards, equal, lengths, finished, **clip, **penalty, **ramp)
    assert terms.tolist() == [[0, 0, 2, 1], [0, 0, 1, 1], [0, -0.5, -2, 1], [-1, -1, 0, 1]]
    assert weights.tolist() == [[0.5, 1, 1, 1]] * 4


@pytest.mark.parametrize(
    "correction, weights", [("none", [1, 1, 1]), ("truncated", [2, 0.5, 2.5]), ("masked", [2, 0.5, 0])]
)
def test_importance_weights_by_hand(correction, weights):
    trainer, sampler = torch.tensor([0.5, 0.2, 0.3]).log(), torch.tensor([0.25, 0.4, 0.1]).log()
    assert pg.importance_weights(trainer, sampler, correction, 2.5).tolist() == pytest.approx(weights)


@pytest.mark.parametrize("kl, factor", [(0.11, 1.01), (10.0, 1.02), (0.0, 0.98)])
def test_the_coefficient_follows_the_kl(kl, factor):
    """A tenth too much: a tenth of the error over a horizon of ten; errors beyond a fifth count as a fifth."""
    assert pg.adapted_coefficient(0.5, kl, target=0.1, horizon=10) == pytest.approx(0.5 * factor)


def test_k1_and_k3_have_the_kl_as_their_mean_and_k2_its_gradient():
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.3, 0.2], dtype=torch.float64).log_softmax(0)
    logprobs = logits.log_softmax(0)
    kl = (logprobs.exp() * (logprobs - reference)).sum()
    (exact,) = torch.autograd.grad(kl, logits, retain_graph=True)
    weights = logprobs.exp().detach()  # how often each token is drawn
    for name in ("k1", "k3"):
        assert (weights * kl_loss(logprobs, reference, name)).sum().item() == pytest.approx(kl.item())
    for name, gradient in (("k2", exact), ("k1", torch.zeros_like(exact))):  # k1 pulls nowhere
        loss = (weights * kl_loss(logprobs, reference, name)).sum()
        torch.testing.assert_close(
            *torch.autograd.grad(loss, logits, retain_graph=True), gradient, atol=1e-12, rtol=1e-7
        )


PLAIN = {"scale": "none", "normalizer": "tokens", "kl": "none"}


@pytest.mark.parametrize(
    "switches, ratio, expected",
    [
        # a response of one token with an advantage of 0.5, one of three tokens with -0.5; four tokens in the batch
        ({}, 1.0, [0.5 / 4, -0.5 / 4]),
        ({"normalizer": "constant"}, 1.0, [0.5 / 16, -0.5 / 16]),  # two responses times 8
        ({}, 1.3, [0, -1.3 * 0.5 / 4]),  # likelier already: no more; but back it may go
        ({"clip_high": 0.4}, 1.3, [1.3 * 0.5 / 4, -1.3 * 0.5 / 4]),
        ({"clipping": "stop_gradient"}, 1.3, [1.2 * 0.5 / 4, -1.2 * 0.5 / 4]),
        # less 0.1 times d, with d = 0.2
        ({"kl": "k2"}, 1.0, [0.5 / 4 - 0.02 / 4, -0.5 / 4 - 0.02 / 4]),
    ],
)
def test_what_a_token_s_log_probability_is_moved_by(switches, ratio, expected):
    advantages, log_ratio_to_reference = torch.tensor([0.5, -0.5, -0.5, -0.5]), torch.full((4,), 0.2).double()
    rows, lengths, objective = torch.tensor([0, 1, 1, 1]), torch.tensor([1, 3]), Objective(**PLAIN | switches)
    weights = pg.token_gradient_weights(
        advantages, log_ratio_to_reference, rows, lengths, objective, kl_coef=0.1, constant=8, ratio=ratio
    )
    assert weights.tolist() == pytest.approx([expected[0], *[expected[1]] * 3], rel=1e-6)


def test_a_misspelt_switch_is_refused_with_its_choices():
    with pytest.raises(ValueError, match="normalizer='token': choose from responses, tokens, constant"):
        Objective(normalizer="token")


def test_without_a_ratio_nothing_is_clipped():
    logprobs, old, advantages = torch.tensor([0.5]), torch.zeros(1), torch.ones(1)
    rows, lengths = torch.tensor([0]), torch.tensor([1])
    for name, share in (("rloo", 0.0), ("grpo", 1.0)):
        _, ratio, clipped = pg.policy_loss(logprobs, old, advantages, rows, lengths, PRESETS[name])
        assert (ratio != clipped).float().mean() == share


def test_reinforce_pp_takes_from_a_token_the_kl_from_it_on():
    """Two responses, rewards 2 and 0, coefficient 0.5; KL 1, 2, 3 and 2, 4 (its last column is padding)."""
    rewards = torch.tensor([2.0, 0.0], dtype=torch.float64)
    kl = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    # 2 − 3, 2 − 2.5, 2 − 1.5 and −3, −2, whose mean is −1.2
    expected = torch.tensor([[0.2, 0.7, 1.7], [-1.8, -0.8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(pg.reinforce_pp_advantages(rewards, kl, mask, 0.5, scaled=False), expected)
    deviation = (expected.square().sum() / 5).sqrt()
    torch.testing.assert_close(pg.reinforce_pp_advantages(rewards, kl, mask, 0.5), expected / deviation)


def test_a_frozen_rollout_has_the_token_advantages_of_reinforce_pp():
    """Two responses of one and two tokens: rewards 1 and 0, a KL of 1 a token, coefficient 0.1; advantages 0.9, −0.2, −0.1."""
    responses = [{"reward": 1.0, "length": 1}, {"reward": 0.0, "length": 2}]
    records = [recorded(**response) for response in responses]
    rollout = rollout_of(records, compose("grpo"), 0.1, "group_mean")
    first, second = rollout._advantages(PRESETS["reinforce_pp"])
    deviation = math.sqrt((0.7**2 + 0.4**2 + 0.3**2) / 3)
    expected = [(value - 0.2) / deviation for value in (0.9, -0.2, -0.1)]
    assert [*first.tolist(), *second.tolist()] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kl", ["reward", "none"])
def test_a_frozen_rollout_of_reinforce_pp_leaves_masked_responses_out_of_the_mean(kl):
    """Rewards 3, 1 and, cut off, 8: the mean is 2."""
    records = [recorded(1, reward=3.0), recorded(1, reward=1.0), recorded(1, reward=8.0, finished=False)]
    config = compose("grpo", ["trainer.grpo.mask_truncated_responses=True"])
    objective = replace(PRESETS["reinforce_pp"], kl=kl)
    advantages = rollout_of(records, config, 0.0, "group_mean")._advantages(objective)
    assert torch.cat(advantages).sign().tolist() == [1, -1, 0]


def recorded(length: int, **more) -> dict:
    """The record of a finished response with a KL of 1 nat for each token."""
    of_tokens = {"token_kl": [1.0] * length, "token_advantage": [0.0] * length}
    return {"prompt": "p", "reward": 1.0, "length": length, "finished": True} | of_tokens | more


@pytest.mark.parametrize(("last_turn", "reward"), [({"last_turn_length": 18}, 0.5), ({}, 0.0)])
def test_a_frozen_rollout_has_the_penalty_of_the_last_turn(last_turn, reward):
    """Of 20 tokens in two turns 18 are the last turn's, so half of the buffer is used; an older record has 20 alone."""
    config = compose("grpo", ["trainer.grpo.overlong_buffer=4", "model.grpo.length_params.max_length=20"])
    rollout = rollout_of([recorded(20, **last_turn)], config, 0.0, "group_mean")
    assert rollout.rewards.tolist() == [reward]
