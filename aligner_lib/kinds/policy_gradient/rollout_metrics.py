"""Metrics of a step's rollouts, and the records of rollouts.jsonl. See docs/metrics.md."""

from __future__ import annotations

import math
from statistics import fmean

import torch
from torch import Tensor

from aligner_lib.algorithms.ppo import masked_mean
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import Collected, EpisodeOutcome
from aligner_lib.rollouts.environments.pool import EnvironmentFailure
from aligner_lib.rollouts.records import ActorCriticExperience, Experience, Rollouts
from aligner_lib.run_folder.turns import last_turn
from aligner_lib.trainers.statistics import mean_std
from data.copying import copied_share
from data.forms import instruction_in
from data.gold import judge_all


def rollout_metrics(
    group: str, rollouts: Rollouts, rewards: Tensor, more_failed: int = 0, more_rewarded: int = 0
) -> dict[str, float | None]:
    """Means over the responses of all ranks under group/, the rewards' standard deviation, and the fraction of failed
    responses.

    rewards: float [B], NaN for a response without a reward. Such a response counts in all metrics except the rewards. The
    rewards are None if no response has a reward. The fraction of failed responses also counts responses outside `rollouts`, the
    same numbers on every rank: more_failed, because an environment provided no prompt or dynamic sampling left the failed
    response out, and more_rewarded, left out with a reward.
    """
    rewards = rewards[rewards.isfinite()]
    rewarded = parallel.sum_over_dp(torch.tensor(float(len(rewards)))).item()
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
    numbers = {number for part in parallel.gather_over_dp(rollouts.group.tolist()) for number in part}
    figures["prompts"] = len(numbers)
    figures["tokens"] = figures["rollout_size"] * figures["response_lengths"]
    figures["rewards_failed"] = 1 - (rewarded + more_rewarded) / (
        figures["rollout_size"] + more_failed + more_rewarded
    )
    if rewarded == 0:
        figures["rewards"] = figures["rewards_std"] = None
    return {f"{group}/{name}": value for name, value in figures.items()}


def copied_metric(group: str, tokenizer: Tokenizer, rollouts: Rollouts) -> dict[str, float]:
    """group/copied_from_prompt: the fraction of a response's words that are copied from its prompt. The mean is over all
    ranks."""
    shares = [
        copied_share(
            tokenizer.decode(rollouts.prompt_tokens(row)), tokenizer.decode(rollouts.response_tokens(row))
        )
        for row in range(rollouts.size)
    ]
    return {f"{group}/copied_from_prompt": mean_std(torch.tensor(shares))[0]}


def good_metric(group: str, tokenizer: Tokenizer, rollouts: Rollouts) -> dict[str, float]:
    """group/good: the fraction of the responses on all ranks that a program judges as good (data/gold.py), all judged together.

    Empty without responses, and unless every prompt has an instruction of data/forms.py: a fraction of only some of the
    responses would be noisier than the reward.
    """
    own_responses = [
        (
            last_turn(tokenizer.decode(rollouts.prompt_tokens(row))),
            _response_text(tokenizer, rollouts, row),
            bool(rollouts.finished[row]),
        )
        for row in range(rollouts.size)
    ]
    responses = [response for part in parallel.gather_over_dp(own_responses) for response in part]
    if not responses or any(instruction_in(turn) is None for turn, *_ in responses):
        return {}
    verdicts = judge_all(*zip(*responses, strict=True))
    return {f"{group}/good": fmean(float(parts.good) for parts in verdicts)}


def experience_metrics(experience: Experience, entropies: Tensor, absolute_kl: bool) -> dict[str, float]:
    """Means over the responses and tokens of all ranks, under train_rollouts/.

    entropies: float [B, S-1] in nats; absolute_kl: whether init_policy_kl uses |log π − log π_ref|.
    """
    counts = experience.response_mask
    penalty = experience.kl.abs() if absolute_kl else experience.kl
    figures = {
        "kl": mean_std(experience.kl[counts])[0],
        "init_policy_kl": mean_std(masked_mean(penalty, counts))[0],
        "entropy": mean_std(entropies[counts])[0],
        "sampler_weight": mean_std(experience.sampler_weights[counts])[0],
    }
    return {f"train_rollouts/{name}": value for name, value in figures.items()}


def sampler_mismatch(experience: Experience) -> dict[str, float]:
    """The difference between the log-probabilities of generation and of training, over the response tokens of all ranks, under
    train_rollouts/."""
    counts = experience.response_mask
    difference = (experience.logprobs - experience.sampler_logprobs)[counts].double()
    weights = difference.exp()
    total, squares, count = parallel.sum_over_dp(
        torch.stack([weights.sum(), (weights**2).sum(), torch.tensor(float(len(weights))).double()])
    ).tolist()
    largest = max(parallel.gather_over_dp(difference.abs().max().item() if len(difference) else 0.0))
    return {
        "train_rollouts/sampler_mismatch": mean_std(difference.abs())[0],
        "train_rollouts/sampler_mismatch_max": largest,
        "train_rollouts/sampler_effective_sample_size": total**2 / (count * squares) if squares else 0.0,
    }


def critic_metrics(experience: ActorCriticExperience, token_rewards: Tensor) -> dict[str, float]:
    """Means and standard deviations over the responses and tokens of all ranks, under train_rollouts/.

    token_rewards: float [B, S-1], with the KL penalty.
    """
    counts = experience.response_mask & experience.has_reward[:, None]
    figures = {
        "rewards_with_kl": mean_std(masked_mean(token_rewards, counts)[experience.has_reward])[0],
        "rlhf_rewards": mean_std(token_rewards.sum(dim=1)[experience.has_reward])[0],
    }
    ends = (counts * torch.arange(counts.shape[1])).argmax(dim=1, keepdim=True)
    figures["returns_last"] = mean_std(experience.returns.gather(1, ends)[experience.has_reward])[0]
    learnt = experience.advantages[experience.loss_mask]
    figures["learnt_advantages_mean"], figures["learnt_advantages_std"] = mean_std(learnt)
    spreads = {
        "advantages": experience.returns - experience.values,  # before normalization
        "returns": experience.returns,
        "values": experience.values,
    }
    for name, values in spreads.items():
        figures[f"{name}_mean"], figures[f"{name}_std"] = mean_std(values[counts])
    if figures["returns_std"] > 0:
        unexplained = figures["advantages_std"] / figures["returns_std"]
        figures["explained_variance"] = 1.0 - unexplained**2
    return {f"train_rollouts/{name}": value for name, value in figures.items()}


def environment_metrics(
    split: str, collected: Collected, rewards: Tensor, failures: list[EnvironmentFailure | EpisodeOutcome]
) -> dict[str, float]:
    """The metrics of each environment under {split}_environments/NAME/, as means over the responses of all ranks.

    An episode that was cut off before its last turn has no metrics. The episode counts in the reward and, with the value 0, in
    each of several rewards; the means of the environment's own metrics leave it out.
    collected: the responses on this rank; rewards: float [B], NaN for a response without a reward; failures: missing prompts
    and failed responses that were left out, the same on every rank.
    """
    of_rank = zip(collected.outcomes, rewards.tolist(), collected.rollouts.group.tolist())
    own_outcomes = [item for item in of_rank if item[0].environment]
    gathered = [item for part in parallel.gather_over_dp(own_outcomes) for item in part]
    figures: dict[str, float] = {}
    for name in dict.fromkeys(
        [outcome.environment for outcome, *_ in gathered] + [failure.environment for failure in failures]
    ):
        of_it = [item for item in gathered if item[0].environment == name]
        judged = [item for item in of_it if math.isfinite(item[1])]
        at = f"{split}_environments/{name}"
        figures[f"{at}/samples"] = len(judged)
        figures[f"{at}/failed"] = (
            len(of_it) - len(judged) + sum(failure.environment == name for failure in failures)
        )
        if not judged:
            continue
        figures[f"{at}/reward"] = sum(reward for _, reward, _ in judged) / len(judged)
        figures[f"{at}/turns"] = sum(outcome.turns for outcome, *_ in judged) / len(judged)
        several = list(judged[0][0].reward_weights)
        for place, reward in enumerate(several):
            of_responses = [outcome.rewards[place] for outcome, *_ in judged]
            figures[f"{at}/rewards/{reward}"] = sum(of_responses) / len(of_responses)
        for metric in dict.fromkeys(key for outcome, *_ in judged for key in outcome.metrics):
            if metric not in several:
                values = [outcome.metrics[metric] for outcome, *_ in judged if metric in outcome.metrics]
                figures[f"{at}/{metric}"] = sum(values) / len(values)
        shares = _groups_alike([(group, outcome) for outcome, _, group in judged])
        figures |= {f"{at}/groups_alike/{reward}": share for reward, share in shares.items()}
    return figures


def _groups_alike(judged: list[tuple[int, EpisodeOutcome]]) -> dict[str, float]:
    """For each of several rewards of an environment: the fraction of groups whose responses all have the same reward.

    judged: the group and the outcome of each response. Empty for an environment with a single reward, and without a group of at
    least two responses.
    """
    groups: dict[int, list[list[float]]] = {}
    for group, outcome in judged:
        groups.setdefault(group, []).append(outcome.rewards)
    groups_of_several = [rewards for rewards in groups.values() if len(rewards) > 1]
    if not groups_of_several:
        return {}
    return {
        name: fmean(float(len({rewards[place] for rewards in group}) == 1) for group in groups_of_several)
        for place, name in enumerate(judged[0][1].reward_weights)
    }


def rollout_records(
    split: str,
    step: int,
    tokenizer: Tokenizer,
    rollouts: Rollouts,
    rewards: Tensor,
    kl: Tensor | None = None,
    advantages: Tensor | None = None,
    outcomes: list[EpisodeOutcome] | None = None,
) -> list[dict]:
    """Make a record for each response of all ranks, with the KL and the advantages of its tokens if available."""
    records, last_turn_lengths = [], rollouts.last_turn_lengths.tolist()
    for row in range(rollouts.size):
        response = rollouts.response_tokens(row)
        record = {
            "step": step,
            "split": split,
            "prompt": tokenizer.decode(rollouts.prompt_tokens(row)),
            "response": _response_text(tokenizer, rollouts, row),
            "reward": rewards[row].item() if rewards[row].isfinite() else None,
            "length": len(response),
            "last_turn_length": last_turn_lengths[row],
            "finished": bool(rollouts.finished[row]),
            "group": int(rollouts.group[row]),
        }
        if outcomes is not None and outcomes[row].environment:
            outcome = outcomes[row]
            record |= {
                "environment": outcome.environment,
                "turns": outcome.turns,
                "metrics": dict(outcome.metrics),
            }
            if outcome.failure is not None:
                record["failure"] = outcome.failure.reason
            if outcome.turns > 1:  # include the environment's turns between the policy's turns
                whole = rollouts.tokens[row, rollouts.prompt_lengths[row] : rollouts.lengths[row]].tolist()
                record["response"] = tokenizer.decode(whole, continues=True)
        if kl is not None:
            counts = rollouts.response_mask[row]
            record["kl"] = kl[row, counts].mean().item()
            record["tokens"] = tokenizer.tokens(response)
            record["token_kl"] = [round(value, 5) for value in kl[row, counts].tolist()]
            if advantages is not None:
                record["token_advantage"] = [round(value, 5) for value in advantages[row, counts].tolist()]
        records.append(record)
    return [record for part in parallel.gather_over_dp(records) for record in part]


def _response_text(tokenizer: Tokenizer, rollouts: Rollouts, row: int) -> str:
    """The text of a response without its stop token."""
    response = rollouts.response_tokens(row)
    text_ids = response[:-1] if response[-1] in tokenizer.stop_ids else response
    return tokenizer.decode(text_ids, continues=True)
