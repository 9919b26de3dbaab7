"""PPO for language models: masks, KL penalty, advantages, clipped losses.

    B responses, S longest row, P prompt length, L prompt + response length (the stop token included)

Tensors are [B, S-1]: index i belongs to the prediction of token i+1. Masks (bool, or 0 and 1) mark the predictions that count.
The mask of a multi-turn response has gaps at the tokens written by the environment.
Sources: PPO (Schulman et al. 2017, arXiv:1707.06347), GAE (Schulman et al. 2016, arXiv:1506.02438), RLHF's per-token KL reward
(Ziegler et al. 2019, arXiv:1909.08593); conventions of NeMo-Aligner.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def response_mask(prompt_lengths: Tensor, lengths: Tensor, size: int) -> Tensor:
    """The mask of single-turn responses, the stop token included: columns [P-1, L-1).

    prompt_lengths, lengths: int64 [B]; size: S-1 → bool [B, S-1].
    """
    columns = torch.arange(size, device=lengths.device)
    return (columns >= prompt_lengths[:, None] - 1) & (columns < lengths[:, None] - 1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Each row's mean over the elements where mask is 1: [B, S-1] → [B]; 0 for an empty row."""
    return (values * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)


def rewards_with_kl(rewards: Tensor, kl: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """Per-token rewards: the response's score at its last token, and −coefficient · kl at every token.

    rewards: float [B]; kl: float [B, S-1] in nats, 0 outside the mask: log π − log π_ref, an estimate from the sampled
    token (k1), or its absolute value → float [B, S-1].
    """
    per_token = -coefficient * kl
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=1)
    return per_token.scatter_add(1, last[:, None], rewards[:, None])


def advantages_and_returns(
    values: Tensor, rewards: Tensor, mask: Tensor, discount_factor: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates, and returns = advantages + values: float [B, S-1] each, 0 outside the mask.

    values, rewards: float [B, S-1]. The successor of a token is the next token in the mask, so gaps in the mask do not
    discount. A response that was cut off at the maximal length ends there, without a bootstrapped value.
    """
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        # δ, the temporal-difference error
        td_error = rewards[:, t] + discount_factor * next_value - values[:, t]
        advantages[:, t] = td_error + discount_factor * gae_lambda * next_advantage
        counts = mask[:, t].bool()
        next_value = torch.where(counts, values[:, t], next_value)
        next_advantage = torch.where(counts, advantages[:, t], next_advantage)
    return advantages * mask, (advantages + values) * mask


def normalize(
    advantages: Tensor,
    mask: Tensor,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda x: x,
    keep_mean: bool = False,
) -> Tensor:
    """(A − μ) / √(σ² + 1e-8) over the masked tokens of all ranks, with the uncorrected variance. 0 outside the mask.

    keep_mean: divide without subtracting the mean. Rewards are whitened in this way, because their sign has a meaning.
    """
    total, count = sum_over_ranks(torch.stack([(advantages * mask).sum(), mask.sum()]).double())
    mean = (total / count.clamp(min=1.0)).to(advantages.dtype)
    squares = sum_over_ranks((((advantages - mean) ** 2) * mask).sum().double())
    variance = (squares / count.clamp(min=1.0)).to(advantages.dtype)
    return (advantages if keep_mean else advantages - mean) * torch.rsqrt(variance + 1e-8) * mask


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """max(−A·r, −A·clip(r, 1 − low, 1 + high)) and the clipped ratio: same shape as the inputs.

    The maximum is the pessimistic choice, for positive and for negative advantages.
    """
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(-advantages * ratio, -advantages * clipped), clipped


def critic_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the squared error of each token: the larger of the value's error and the clipped value's error.

    clip: the clipped value lies within ±clip of old_values, the values at rollout time. A value that moves farther gains
    nothing. clip ≤ 0 turns clipping off. Arguments and result have the same shape.
    """
    error = (values - returns) ** 2
    if clip > 0:
        clipped_values = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (clipped_values - returns) ** 2)
    return 0.5 * error
