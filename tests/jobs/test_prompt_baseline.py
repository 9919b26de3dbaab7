"""PPO with the mean reward of a prompt's responses as what its values begin from."""

from collections import defaultdict
from statistics import fmean

import pytest

ONE_STEP = {
    "trainer__ppo__max_steps": 1,
    "trainer__ppo__gae_lambda": 1.0,
    "trainer__ppo__critic_warmup_steps": 0,
    "model__ppo__num_generations_per_prompt": 4,
    "critic__model__new_head": True,  # the critic's own outputs are 0 in the first step,
    "critic__model__optim__lr": 1e-12,  # and in its second update
    "critic__model__optim__sched__min_lr": 0,
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


def test_values_advantages_and_the_critic_s_loss_begin_from_the_baseline(jobs):
    """The critic's output is 0 for each token, so its loss is half the mean square of return minus baseline."""
    runs = {
        baseline: jobs.run("ppo", f"ppo_{baseline}", **ONE_STEP, trainer__ppo__prompt_baseline=baseline)
        for baseline in ("none", "group_mean", "leave_one_out")
    }
    none, group_mean, leave_one_out = (run.metrics()[1] for run in runs.values())
    rewards, others, lengths = of_responses(runs["leave_one_out"])
    assert leave_one_out["train_rollouts/values_mean"] == pytest.approx(
        over_tokens(others, lengths), abs=1e-5
    )
    beyond = [reward - other for reward, other in zip(rewards, others)]
    advantages = over_tokens(beyond, lengths)
    assert leave_one_out["train_rollouts/advantages_mean"] == pytest.approx(advantages, abs=1e-5)
    losses = [0.5 * difference**2 for difference in beyond]
    halves = [over_tokens(losses[half], lengths[half]) for half in (slice(8), slice(8, 16))]  # global batches
    assert leave_one_out["critic/loss"] == pytest.approx(fmean(halves), rel=1e-4)

    rewards, others, lengths = of_responses(runs["group_mean"])  # with the response's own reward in it
    means = [(reward + 3 * other) / 4 for reward, other in zip(rewards, others)]
    assert group_mean["train_rollouts/values_mean"] == pytest.approx(over_tokens(means, lengths), abs=1e-5)

    for name in ("rewards", "rlhf_rewards", "returns_mean", "returns_std", "returns_last"):
        assert leave_one_out[f"train_rollouts/{name}"] == none[f"train_rollouts/{name}"]
    explained = "train_rollouts/explained_variance"
    assert none[explained] == 0.0 != leave_one_out[explained]
