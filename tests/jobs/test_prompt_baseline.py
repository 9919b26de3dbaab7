"""PPO with the mean reward of a prompt's responses as what its values begin from."""

from collections import defaultdict
from statistics import fmean

import pytest
from smoke_jobs import SmokeJobs

ONE_STEP = {
    "trainer__ppo__max_steps": 1,
    "trainer__ppo__gae_lambda": 1.0,
    "trainer__ppo__critic_warmup_steps": 0,
    "model__ppo__num_generations_per_prompt": 4,
    "critic__model__new_head": True,  # the critic's own outputs are 0 in the first step,
    "critic__model__optim__lr": 1e-12,  # and in its second update
    "critic__model__optim__sched__min_lr": 0,
}


@pytest.fixture(scope="module")
def runs(jobs: SmokeJobs):
    return {
        baseline: jobs.run("ppo", f"ppo_{baseline}", **ONE_STEP, trainer__ppo__prompt_baseline=baseline)
        for baseline in ("none", "group_mean", "leave_one_out")
    }


def of_responses(run) -> tuple[list[float], list[float], list[int]]:
    """Rewards, the means of the other three rewards of each prompt, and lengths, of the first step's 16 responses."""
    records = [record for record in run.rollouts() if record["split"] == "train"]
    groups = defaultdict(list)
    for record in records:
        groups[record["group"]].append(record["reward"])
    rewards = [record["reward"] for record in records]
    others = [(sum(groups[r["group"]]) - r["reward"]) / 3 for r in records]
    assert {len(group) for group in groups.values()} == {4} and len(set(rewards)) > 8
    return rewards, others, [record["length"] for record in records]


def over_tokens(values, lengths) -> float:
    return sum(value * length for value, length in zip(values, lengths)) / sum(lengths)


def test_the_values_of_the_first_step_are_the_mean_rewards_of_the_other_responses(runs):
    rewards, others, lengths = of_responses(runs["leave_one_out"])
    first = runs["leave_one_out"].metrics()[1]
    assert first["train_rollouts/values_mean"] == pytest.approx(over_tokens(others, lengths), abs=1e-5)
    beyond = [reward - other for reward, other in zip(rewards, others)]
    assert first["train_rollouts/advantages_mean"] == pytest.approx(over_tokens(beyond, lengths), abs=1e-5)


def test_a_group_s_mean_has_the_response_s_own_reward_in_it(runs):
    rewards, others, lengths = of_responses(runs["group_mean"])
    means = [(reward + 3 * other) / 4 for reward, other in zip(rewards, others)]
    first = runs["group_mean"].metrics()[1]
    assert first["train_rollouts/values_mean"] == pytest.approx(over_tokens(means, lengths), abs=1e-5)


def test_the_baseline_changes_neither_rewards_nor_returns_and_explains_what_the_critic_does_not(runs):
    none, other = (runs[name].metrics()[1] for name in ("none", "leave_one_out"))
    for name in ("rewards", "rlhf_rewards", "returns_mean", "returns_std", "returns_last"):
        assert other[f"train_rollouts/{name}"] == none[f"train_rollouts/{name}"]
    assert none["train_rollouts/explained_variance"] == 0.0 != other["train_rollouts/explained_variance"]


def test_the_critic_learns_what_the_returns_are_above_the_baseline(runs):
    """Its output is 0 for each token, so its loss is half the mean square of return minus baseline: of each half, a global batch."""
    rewards, others, lengths = of_responses(runs["leave_one_out"])
    losses = [0.5 * (reward - other) ** 2 for reward, other in zip(rewards, others)]
    halves = [over_tokens(losses[half], lengths[half]) for half in (slice(8), slice(8, 16))]
    loss = runs["leave_one_out"].metrics()[1]["critic/loss"]
    assert loss == pytest.approx(fmean(halves), rel=1e-4)
