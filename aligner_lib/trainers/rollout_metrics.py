"""What a PPO step tells about its rollouts: metrics, and the records of rollouts.jsonl. See docs/metrics.md."""

from __future__ import annotations

import torch
from torch import Tensor

from aligner_lib.algorithms.ppo import masked_mean
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.records import Experience, Rollouts


def rollout_metrics(group: str, rollouts: Rollouts, rewards: Tensor) -> dict[str, float]:
    """Means over all ranks' responses under group/, and the standard deviation of the rewards."""
    per_response = {
        "rewards": rewards,
        "response_lengths": rollouts.lengths.float(),
        "prompt_lengths": rollouts.prompt_lengths.float(),
        "generation_length": rollouts.generation_lengths.float(),
        "fraction_of_samples_properly_ended": rollouts.finished.float(),
    }
    figures = {name: mean_std(values)[0] for name, values in per_response.items()}
    figures["rewards_std"] = mean_std(rewards)[1]
    figures["rollout_size"] = parallel.sum_over_dp(torch.tensor([float(rollouts.size)])).item()
    figures["tokens"] = figures["rollout_size"] * figures["response_lengths"]
    return {f"{group}/{name}": value for name, value in figures.items()}


def experience_metrics(
    experience: Experience, token_rewards: Tensor, entropies: Tensor, absolute_kl: bool
) -> dict[str, float]:
    """Means and spreads over all ranks' responses and their tokens, under train_rollouts/.

    token_rewards: float [B, S-1], with the KL penalty; entropies: float [B, S-1] in nats; absolute_kl: whether the
    penalty takes |log π − log π_ref|.
    """
    counts = experience.response_mask
    penalty = experience.kl.abs() if absolute_kl else experience.kl
    figures = {
        "kl": mean_std(experience.kl[counts])[0],
        "init_policy_kl": mean_std(masked_mean(penalty, counts))[0],
        "entropy": mean_std(entropies[counts])[0],
        "rewards_with_kl": mean_std(masked_mean(token_rewards, counts))[0],
        "rlhf_rewards": mean_std(token_rewards.sum(dim=1))[0],
    }
    spreads = {
        "advantages": experience.returns - experience.values,  # before they were normalised
        "returns": experience.returns,
        "values": experience.values,
    }
    for name, values in spreads.items():
        figures[f"{name}_mean"], figures[f"{name}_std"] = mean_std(values[counts])
    if figures["returns_std"] > 0:
        unexplained = figures["advantages_std"] / figures["returns_std"]
        figures["explained_variance"] = 1.0 - unexplained**2
    return {f"train_rollouts/{name}": value for name, value in figures.items()}


def rollout_records(
    split: str,
    step: int,
    tokenizer: Tokenizer,
    rollouts: Rollouts,
    rewards: Tensor,
    kl: Tensor | None = None,
    advantages: Tensor | None = None,
) -> list[dict]:
    """One record for each of all ranks' responses, with its tokens' KL and advantages where there are some."""
    records = []
    for row in range(rollouts.size):
        response = rollouts.response_tokens(row)
        text_ids = response[:-1] if response[-1] == tokenizer.eos_id else response
        record = {
            "step": step,
            "split": split,
            "prompt": tokenizer.decode(rollouts.prompt_tokens(row)),
            "response": tokenizer.decode(text_ids, continues=True),
            "reward": rewards[row].item(),
            "length": len(response),
            "finished": bool(rollouts.finished[row]),
        }
        if kl is not None:
            counts = rollouts.response_mask[row]
            record["kl"] = kl[row, counts].mean().item()
            record["tokens"] = tokenizer.tokens(response)
            record["token_kl"] = [round(value, 5) for value in kl[row, counts].tolist()]
            if advantages is not None:
                record["token_advantage"] = [round(value, 5) for value in advantages[row, counts].tolist()]
        records.append(record)
    return [record for part in parallel.gather_over_dp(records) for record in part]


def mean_std(values: Tensor) -> tuple[float, float]:
    """Mean and uncorrected standard deviation over all ranks."""
    values = values.double()
    count, total = parallel.sum_over_dp(
        torch.tensor([values.numel(), values.sum()], dtype=torch.float64)
    ).tolist()
    mean = total / max(count, 1.0)
    squares = parallel.sum_over_dp(((values - mean) ** 2).sum()).item()
    return mean, (squares / max(count, 1.0)) ** 0.5
