"""Policy gradients for language models: one objective, with the switches of `aligner_lib.algorithms.objective`.

    B responses, K rewards of a response, S longest row, T tokens from which the policy learns, in all responses, in row order

Source of the clipped ratio: Schulman et al. 2017 (arXiv:1707.06347). The other sources are named beside their switches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aligner_lib.algorithms.objective import Objective
from aligner_lib.algorithms.ppo import clipped_surrogate, normalize


def grpo_advantages(rewards: Tensor, group: Tensor) -> Tensor:
    """GRPO's advantage of each response, (r − mean) / (σ + 1e-4) of its group's rewards: float [B].

    rewards: float [B]; group: int64 [B], the same number for all responses to one prompt. When all rewards of a group are
    equal, or the group has one response, its advantages are 0. The standard deviation is the corrected one (n − 1), as in
    TRL. Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2.
    """
    advantages = torch.zeros_like(rewards)
    for number in group.unique():
        in_group = group == number
        group_rewards = rewards[in_group]
        # rounding would give equal rewards advantages other than 0
        if group_rewards.min() < group_rewards.max():
            advantages[in_group] = (group_rewards - group_rewards.mean()) / (group_rewards.std() + 1e-4)
    return advantages


def group_advantages(
    rewards: Tensor,
    group: Tensor,
    baseline: str,
    scale: str,
    grpo_formula: Callable[[Tensor, Tensor], Tensor] = grpo_advantages,
) -> Tensor:
    """How much better each response is than its group (or the batch): float [B].

    rewards: float [B], NaN for a response without a reward. A response without a reward is excluded from its group's mean, and
    its advantage is 0. baseline, scale: see `algorithms.objective`. grpo_formula computes the advantages for GRPO's choice,
    group_mean and group_std.
    """
    advantages, known = torch.zeros_like(rewards), rewards.isfinite()
    if not known.any():
        return advantages
    if (baseline, scale) == ("group_mean", "group_std"):
        advantages[known] = grpo_formula(rewards[known], group[known])
    else:
        advantages[known] = _compared(rewards[known], group[known], baseline, scale)
    return advantages


def gdpo_advantages(
    rewards: Tensor,
    weights: Tensor,
    group: Tensor,
    grpo_formula: Callable[[Tensor, Tensor], Tensor] = grpo_advantages,
) -> Tensor:
    """GDPO's advantage of each response: float [B].

    Each reward is normalised within its group by itself. The weighted sum of the normalised rewards is divided by its standard
    deviation over the batch, so the number of rewards does not change the size of the advantages.

    rewards, weights: float [B, K]; a response with a NaN among its rewards is excluded from its group, and its advantage is 0.
    group: int64 [B]. grpo_formula normalises a reward. Source: Liu et al. 2026 (arXiv:2601.05242). TRL also
    subtracts the batch's mean, which is 0 except for rounding, and the rounding would teach something about equal rewards.
    """
    known = rewards.isfinite().all(dim=1)
    rewards = rewards.masked_fill(~known[:, None], math.nan)
    normalized = [
        group_advantages(reward, group, "group_mean", "group_std", grpo_formula) for reward in rewards.T
    ]
    advantages = (weights * torch.stack(normalized, dim=1)).sum(dim=1)
    if known.sum() > 1:
        advantages = advantages / (advantages[known].std() + 1e-4)
    return advantages


def _compared(rewards: Tensor, group: Tensor, baseline: str, scale: str) -> Tensor:
    """As `grpo_advantages`, for another baseline or another scale."""
    advantages = torch.zeros_like(rewards)
    for number in group.unique():
        group_rewards = rewards[group == number]
        compared = rewards if baseline == "batch_mean" else group_rewards
        if compared.min() == compared.max():
            continue
        size = len(group_rewards)
        advantage = group_rewards - compared.mean()
        if baseline == "leave_one_out":  # r − (n·mean − r) / (n − 1)
            advantage = advantage * size / (size - 1)
        if scale == "group_std":
            deviation = group_rewards.std(correction=min(1, size - 1))  # 0 for a group with one reward
            advantage = advantage / (deviation + 1e-4)
        elif scale == "batch_std":
            advantage = advantage / (rewards.std() + 1e-4)
        advantages[group == number] = advantage
    return advantages


def reinforce_pp_advantages(
    rewards: Tensor,
    kl: Tensor,
    mask: Tensor,
    coefficient: float,
    *,
    scaled: bool = True,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """REINFORCE++'s advantage of each token: float [B, S-1], 0 outside the mask.

    The advantage is r − coefficient · Σ KL of the token and all later tokens, normalised over all tokens of all ranks. A token
    is charged for its own KL and for the KL of later tokens, which depend on the token, but not for the KL of earlier tokens.

    rewards: float [B], finite; kl: float [B, S-1] in nats; mask: bool [B, S-1], response tokens that have a reward. scaled:
    whether the advantages are also divided by their standard deviation. Source: REINFORCE++, Hu et al. 2025 (arXiv:2501.03262).
    """
    kl_from_here = (kl * mask).flip(1).cumsum(dim=1).flip(1)
    advantages = (rewards[:, None] - coefficient * kl_from_here) * mask
    if scaled:
        return normalize(advantages, mask, sum_over_ranks)
    total, count = sum_over_ranks(torch.stack([advantages.sum(), mask.sum()]).double())
    return (advantages - (total / count.clamp(min=1.0)).to(advantages.dtype)) * mask


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    rows: Tensor,
    lengths: Tensor,
    objective: Objective,
    surrogate: Callable[..., tuple[Tensor, Tensor]] = clipped_surrogate,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each token before normalisation, the ratio of each token, and the clipped ratio: float [T] each.

    With the ratio `none` nothing is clipped. logprobs, old_logprobs, advantages: float [T]; rows: int64 [T], the response of
    each token; lengths: int64 [B], the number of tokens in each response from which the policy learns. surrogate: a function of
    ratio, advantages, clip_low and clip_high that returns the loss and the clipped ratio.
    """
    log_ratio = logprobs - old_logprobs
    if objective.ratio == "sequence":
        means = log_ratio.new_zeros(len(lengths)).index_add(0, rows, log_ratio) / lengths.clamp(min=1)
        log_ratio = means[rows]
    ratio = log_ratio.exp()
    if objective.ratio == "none":
        return -advantages * logprobs, ratio, ratio
    losses, clipped = surrogate(ratio, advantages, objective.clip_low, objective.clip_high)
    if objective.clipping == "stop_gradient":
        losses = -advantages * clipped.detach() * logprobs
    return losses, ratio, clipped


def loss_mask(response_mask: Tensor, learnt: Tensor) -> Tensor:
    """The tokens from which the policy may learn: bool [B, S-1], where index i belongs to the prediction of token i+1.

    response_mask: bool [B, S-1], the policy's own tokens, the stop token included; learnt: bool [B], True for responses with a
    reward, from which the policy may learn.
    """
    return response_mask & learnt[:, None]


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """An estimate of KL(policy ‖ reference) from the sampled token, in nats: float [T], with gradient.

    With d = log π − log π_ref: k1 is d, k2 is d²/2, k3 is e^−d − 1 + d. When the policy drew the tokens, k1 and k3 are
    unbiased estimates of the KL. For the next token after a given prefix, only k2's gradient is an unbiased estimate of the
    KL's gradient. None of the three gradients contains a token's effect on the KL of later tokens; a KL in the reward
    does. Source: Schulman 2020, "Approximating KL divergence".
    """
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    return difference**2 / 2 if estimator == "k2" else torch.exp(-difference) - 1 + difference


def token_weights(
    lengths: Tensor, normalizer: str, constant: int, responses: int, tokens: int, learnt: int
) -> Tensor:
    """The weight of each response's token losses: float [B]. The mean of the weighted losses over `learnt` tokens is the loss.

    lengths: int64 [B], the number of tokens in each response from which the policy can learn; responses, tokens: the number of
    responses and of these tokens in the global batch; learnt: the number of tokens that the step computes (a step may leave out
    responses with advantage 0). The mean of the weighted losses equals the sum of the losses divided as follows. `responses`:
    by the response's length times the number of responses; `tokens`: by the number of tokens; `constant`: by the number of
    responses times the constant.
    """
    if normalizer == "responses":
        return learnt / (lengths.clamp(min=1) * responses)
    per_token = learnt / (tokens if normalizer == "tokens" else responses * constant)
    return torch.full((len(lengths),), per_token)


def token_gradient_weights(
    advantages: Tensor,
    log_ratio_to_reference: Tensor,
    rows: Tensor,
    lengths: Tensor,
    objective: Objective,
    *,
    kl_coef: float = 0.0,
    constant: int = 1,
    ratio: float = 1.0,
) -> Tensor:
    """The gradient of the objective with respect to each token's log π, with all responses as one batch: float64 [T].

    advantages: float [T]; log_ratio_to_reference: float [T], log π − log π_ref at the start of the step; rows: int64 [T],
    the response of each token; lengths: int64 [B]. constant: the divisor of the normaliser `constant`; ratio: π_now / π_old
    of every token. Autograd computes minus the gradient of the loss. A step of gradient ascent makes a token with a value
    above 0 more likely.
    """
    # zeros suffice: the losses depend only on differences of log-probabilities
    old = torch.zeros(len(rows), dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    losses, _, _ = policy_loss(logprobs, old, advantages.double(), rows, lengths, objective)
    if objective.kl_in_loss:
        reference = old - log_ratio_to_reference.double()
        losses = losses + kl_coef * kl_loss(logprobs, reference, objective.kl)
    weights = token_weights(
        lengths, objective.normalizer, constant, int((lengths > 0).sum()), len(rows), len(rows)
    )
    (gradient,) = torch.autograd.grad((losses * weights.double()[rows]).mean(), logprobs)
    return -gradient


def shaped_terms(
    rewards: Tensor,
    weights: Tensor,
    lengths: Tensor,
    finished: Tensor,
    *,
    clip: float | None = None,
    missing_eos_penalty: float = 0.0,
    max_length: int = 0,
    overlong_buffer: int = 0,
    overlong_penalty: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The penalties of each response as two rewards, followed by its own rewards after clipping; then all weights: float [B, 2+K]
    each.

    rewards, weights: float [B, K]; lengths: int64 [B], tokens of the response's last turn; finished: bool [B]. clip: each reward is clipped
    to [−clip, clip]. The first penalty is −1 for a response that was cut off, with the weight missing_eos_penalty. The second
    falls linearly to −1 over the last overlong_buffer tokens before max_length, with the weight overlong_penalty: Yu et al. 2025
    (arXiv:2503.14476), equation 13.
    """
    if clip is not None:
        rewards = rewards.clamp(-clip, clip)
    beyond = (lengths - (max_length - overlong_buffer)).clamp(min=0, max=overlong_buffer)
    penalties = -torch.stack([(~finished).to(rewards), beyond.to(rewards) / max(overlong_buffer, 1)], dim=1)
    weights_of_penalties = penalties.new_tensor([missing_eos_penalty, overlong_penalty]).expand_as(penalties)
    return torch.cat([penalties, rewards], dim=1), torch.cat([weights_of_penalties, weights], dim=1)


def shaped_rewards(rewards: Tensor, lengths: Tensor, finished: Tensor, **shaping: Any) -> Tensor:
    """The rewards that training uses, after clipping and penalties: float [B].

    rewards: float [B]; for the other arguments see `shaped_terms`.
    """
    terms, weights = shaped_terms(
        rewards[:, None], torch.ones_like(rewards)[:, None], lengths, finished, **shaping
    )
    return (terms * weights).sum(dim=1)


def importance_weights(logprobs: Tensor, sampler_logprobs: Tensor, correction: str, cap: float) -> Tensor:
    """Importance weights of tokens drawn from another distribution than the policy's: float, same shape.

    logprobs: the trainer's log-probabilities under the policy at the start of the step; sampler_logprobs: the log-probabilities
    under the distribution from which the tokens were drawn. correction: truncated is min(ratio, cap), masked is the ratio up to
    the cap and 0 above it, none is 1. Source of the truncated weights: Ionides 2008, "Truncated importance sampling"; for
    rollouts: Yao et al. 2025.
    """
    ratio = (logprobs - sampler_logprobs).exp()
    if correction == "truncated":
        return ratio.clamp(max=cap)
    return ratio * (ratio <= cap) if correction == "masked" else torch.ones_like(ratio)


def adapted_coefficient(coefficient: float, kl: float, target: float, horizon: float) -> float:
    """The KL coefficient of the next step: coefficient · (1 + error / horizon), error = kl / target − 1 clipped to ±0.2.

    kl, target: nats; horizon: steps. Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error / horizon)
