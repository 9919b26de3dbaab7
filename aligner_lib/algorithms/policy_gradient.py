"""Policy gradients for language models: one objective, whose switches `aligner_lib.algorithms.objective` has.

    B responses, S longest row, T tokens that are learnt from, of all responses, in row order

Source of the clipped ratio: Schulman et al. 2017 (arXiv:1707.06347); the others stand beside their switches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from aligner_lib.algorithms.objective import Objective
from aligner_lib.algorithms.ppo import clipped_surrogate, normalize


def grpo_advantages(rewards: Tensor, group: Tensor) -> Tensor:
    """GRPO's advantage of each response, (r − mean) / (σ + 1e-4) of its group's rewards: float [B].

    rewards: float [B]; group: int64 [B], equal for responses to one prompt. A group whose rewards are all alike, as those of
    one response are, has nothing to compare: its advantages are 0. The standard deviation is the corrected one (n − 1), as
    in TRL. Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2.
    """
    advantages = torch.zeros_like(rewards)
    for one in group.unique():
        mine = rewards[group == one]
        if mine.min() < mine.max():  # else rounding would make advantages out of equal rewards
            advantages[group == one] = (mine - mine.mean()) / (mine.std() + 1e-4)
    return advantages


def group_advantages(
    rewards: Tensor,
    group: Tensor,
    baseline: str,
    scale: str,
    of_grpo: Callable[[Tensor, Tensor], Tensor] = grpo_advantages,
) -> Tensor:
    """How much better each response is than its group (or the batch): float [B].

    rewards: float [B], NaN where there is none: such a response is nobody's company, and its advantage is 0. baseline,
    scale: of `algorithms.objective`; group_mean and group_std are GRPO's, which `of_grpo` computes.
    """
    advantages, known = torch.zeros_like(rewards), rewards.isfinite()
    if not known.any():
        return advantages
    if (baseline, scale) == ("group_mean", "group_std"):
        advantages[known] = of_grpo(rewards[known], group[known])
    else:
        advantages[known] = _compared(rewards[known], group[known], baseline, scale)
    return advantages


def _compared(rewards: Tensor, group: Tensor, baseline: str, scale: str) -> Tensor:
    """As grpo_advantages, with another baseline or another scale."""
    advantages = torch.zeros_like(rewards)
    for one in group.unique():
        mine = rewards[group == one]
        company = rewards if baseline == "batch_mean" else mine
        if company.min() == company.max():
            continue
        advantage = mine - company.mean()
        if baseline == "leave_one_out":  # r − (n·mean − r) / (n − 1)
            advantage = advantage * len(mine) / (len(mine) - 1)
        if scale == "group_std":
            deviation = mine.std(correction=min(1, len(mine) - 1))  # one reward alone has a deviation of 0
            advantage = advantage / (deviation + 1e-4)
        elif scale == "batch_std":
            advantage = advantage / (rewards.std() + 1e-4)
        advantages[group == one] = advantage
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
    """REINFORCE++'s advantage of each token, r − coefficient · Σ KL from that token on, normalised over all tokens of all
    ranks: float [B, S-1], 0 outside the mask.

    rewards: float [B], finite; kl: float [B, S-1] in nats; mask: bool [B, S-1], response tokens that have a reward.
    scaled: whether the advantages are divided by their standard deviation. A token answers for the KL of what follows it,
    not of what came before. Source: REINFORCE++, Hu et al. 2025 (arXiv:2501.03262).
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
    """The loss of each token, before it is normalised, its ratio and the clipped ratio: float [T] each.

    logprobs, old_logprobs, advantages: float [T]; rows: int64 [T], each token's response; lengths: int64 [B], tokens of
    each response that are learnt from. surrogate: another loss of ratio and advantage, with the clipped ratio.
    """
    log_ratio = logprobs - old_logprobs
    if objective.ratio == "sequence":
        means = log_ratio.new_zeros(len(lengths)).index_add(0, rows, log_ratio) / lengths.clamp(min=1)
        log_ratio = means[rows]
    ratio = log_ratio.exp()
    losses, clipped = surrogate(ratio, advantages, objective.clip_low, objective.clip_high)
    if objective.ratio == "none":
        losses = -advantages * logprobs
    elif objective.clipping == "stop_gradient":
        losses = -advantages * clipped.detach() * logprobs
    return losses, ratio, clipped


def loss_mask(response_mask: Tensor, learnt: Tensor) -> Tensor:
    """The tokens that may be learnt from: bool [B, S-1], where index i belongs to the prediction of token i+1.

    response_mask: bool [B, S-1], the policy's own tokens, the stop token included; learnt: bool [B], which responses may
    be learnt from: those that have a reward.
    """
    return response_mask & learnt[:, None]


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """An estimate of KL(policy ‖ reference) from the sampled token, in nats: float [T], with gradient.

    With d = log π − log π_ref: k1 is d, k2 is d²/2, k3 is e^−d − 1 + d. All but k2 are unbiased, and k2 alone has the
    KL's gradient, when the tokens are the policy's own. Source: Schulman 2020, "Approximating KL divergence".
    """
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    return difference**2 / 2 if estimator == "k2" else torch.exp(-difference) - 1 + difference


def token_weights(
    lengths: Tensor, normalizer: str, constant: int, responses: int, tokens: int, learnt: int
) -> Tensor:
    """How much each token's loss counts, so that the mean over the tokens that are learnt from is the objective: float [B].

    lengths: int64 [B], tokens of each response that could be learnt from; responses and tokens: how many there are of
    both in the whole global batch; learnt: how many of the tokens are in it (a response without an advantage need not be).
    The weighted sum is divided, by `learnt` and this weight together, for `responses` by each response's length and their
    number, for `tokens` by the number of tokens, for `constant` by the number of responses times the constant.
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
    """How much an ascent on the objective moves each token's log π, with all responses as one batch: float64 [T].

    advantages: float [T]; log_ratio_to_reference: float [T], log π − log π_ref as the step began; rows: int64 [T], each
    token's response; lengths: int64 [B]. constant: what the normaliser of that name divides by; ratio: π_now / π_old of
    every token. Minus the gradient of the loss itself, by autograd: above 0 a token becomes likelier.
    """
    old = torch.zeros(
        len(rows), dtype=torch.float64
    )  # the losses know differences of log-probabilities alone
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


def shaped_rewards(
    rewards: Tensor,
    lengths: Tensor,
    finished: Tensor,
    *,
    clip: float | None = None,
    missing_eos_penalty: float = 0.0,
    max_length: int = 0,
    overlong_buffer: int = 0,
    overlong_penalty: float = 1.0,
) -> Tensor:
    """Rewards as they are learnt from: float [B].

    rewards: float [B]; lengths: int64 [B], tokens of the response; finished: bool [B]. clip: rewards are held in
    [−clip, clip] first. A response that was cut off loses missing_eos_penalty. One that comes within overlong_buffer
    tokens of max_length loses up to overlong_penalty, linearly: Yu et al. 2025 (arXiv:2503.14476), equation 13.
    """
    if clip is not None:
        rewards = rewards.clamp(-clip, clip)
    rewards = rewards - missing_eos_penalty * ~finished
    if overlong_buffer:
        beyond = (lengths - (max_length - overlong_buffer)).clamp(min=0, max=overlong_buffer)
        rewards = rewards - overlong_penalty * beyond / overlong_buffer
    return rewards


def importance_weights(logprobs: Tensor, sampler_logprobs: Tensor, correction: str, cap: float) -> Tensor:
    """What makes up for tokens that were drawn from another distribution than the one that learns: float, same shape.

    logprobs: of the policy as the step began, by the trainer's computation; sampler_logprobs: of the distribution that
    the tokens were drawn from. truncated: min(ratio, cap); masked: the ratio, and 0 beyond the cap; none: 1. Source of
    the truncated weights: Ionides 2008, "Truncated importance sampling"; for rollouts: Yao et al. 2025.
    """
    ratio = (logprobs - sampler_logprobs).exp()
    if correction == "truncated":
        return ratio.clamp(max=cap)
    return ratio * (ratio <= cap) if correction == "masked" else torch.ones_like(ratio)


def adapted_coefficient(coefficient: float, kl: float, target: float, horizon: float) -> float:
    """The next step's KL coefficient: 1 + error / horizon times this one's, the error being kl / target − 1, held in ±0.2.

    kl, target: nats; horizon: steps. Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error / horizon)
