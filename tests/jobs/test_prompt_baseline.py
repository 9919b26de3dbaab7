"""PPO with the mean reward of a prompt's other responses as what its values begin from."""

from collections import defaultdict
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

ONE_STEP = {
    "trainer__ppo__max_steps": 1,
    "trainer__ppo__gae_lambda": 1.0,
    "trainer__ppo__critic_warmup_steps": 0,
    "trainer__ppo__prompt_baseline": "leave_one_out",
    "model__ppo__num_generations_per_prompt": 4,
    "critic__model__new_head": True,  # the critic's own outputs are 0 in the first step,
    "critic__model__optim__lr": 1e-12,  # and in its second update
    "critic__model__optim__sched__min_lr": 0,
}


def test_values_advantages_and_the_critic_s_loss_begin_from_the_baseline(jobs):
    """The critic's output is 0 for each token, so its loss is half the mean square of return minus baseline."""
    run = jobs.run("ppo", "ppo_leave_one_out", **ONE_STEP)
    metrics = run.metrics()[1]
    records = [record for record in run.rollouts() if record["split"] == "train"]
    groups = defaultdict(list)
    for record in records:
        groups[record["group"]].append(record["reward"])
    assert {len(group) for group in groups.values()} == {4}
    rewards = [record["reward"] for record in records]
    assert len(set(rewards)) > 8
    baselines = [(sum(groups[r["group"]]) - r["reward"]) / 3 for r in records]
    differences = [reward - baseline for reward, baseline in zip(rewards, baselines)]
    lengths = [record["length"] for record in records]

    def over_tokens(values: list[float], part: slice = slice(None)) -> float:
        sums = [value * length for value, length in zip(values[part], lengths[part])]
        return sum(sums) / sum(lengths[part])

    for name, values in (("values", baselines), ("advantages", differences), ("returns", rewards)):
        assert metrics[f"train_rollouts/{name}_mean"] == pytest.approx(over_tokens(values), abs=1e-5)
    losses = [0.5 * difference**2 for difference in differences]
    of_global_batches = [over_tokens(losses, slice(8)), over_tokens(losses, slice(8, 16))]
    assert metrics["critic/loss"] == pytest.approx(fmean(of_global_batches), rel=1e-4)
    assert metrics["train_rollouts/explained_variance"] != 0


@pytest.mark.parametrize(
    ("baseline", "expected"), [("none", [0, 0, 0, 0]), ("group_mean", [2, 2, 5, 5]), ("leave_one_out", [3, 1, 6, 4])]
)  # fmt: skip
def test_a_group_s_mean_has_the_response_s_own_reward_in_it_and_without_a_baseline_there_is_none(
    here, baseline, expected
):
    from aligner_lib.kinds.ppo.trainer import PPOTrainer

    trainer = PPOTrainer.__new__(PPOTrainer)
    trainer.loop_settings = SimpleNamespace(prompt_baseline=baseline)
    rollouts = SimpleNamespace(group=torch.tensor([0, 0, 1, 1]))
    assert trainer.prompt_baseline(rollouts, torch.tensor([1.0, 3.0, 4.0, 6.0])).tolist() == expected
    # the second group has a single reward, and the mean of all three is 3
    lone = trainer.prompt_baseline(rollouts, torch.tensor([1.0, 3.0, 5.0, float("nan")])).tolist()
    assert lone == {"none": [0, 0, 0, 0], "group_mean": [2, 2, 5, 0], "leave_one_out": [3, 1, 3, 0]}[baseline]
