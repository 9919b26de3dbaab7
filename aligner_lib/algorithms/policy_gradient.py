"""Policy gradients for language models: one objective with six switches, of which the named algorithms are settings.

    B responses, T tokens that are learnt from, of all responses, in row order

A switch is where two papers differ; what none of them disputes stands here once. `PRESETS` has the names.
Source of the clipped ratio: Schulman et al. 2017 (arXiv:1707.06347); the others stand beside their switches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aligner_lib.algorithms.ppo import clipped_surrogate


@dataclass(frozen=True)
class Objective:
    """What is maximised. The defaults are GRPO (Shao et al. 2024, arXiv:2402.03300)."""

    # what a response's reward is compared with: its group's mean, that of the group's others, the batch's mean, a critic
    baseline: str = "group_mean"  # | leave_one_out | batch_mean | critic
    scale: str = "group_std"  # | batch_std | none: what advantages are divided by
    ratio: str = (
        "token"  # | sequence (its geometric mean over the response) | none (the gradient of log π alone)
    )
    clipping: str = (
        "pessimistic"  # | stop_gradient: the clipped ratio is a weight of log π, and has no gradient
    )
    clip_low: float = 0.2  # the ratio is held in [1 − clip_low, 1 + clip_high]
    clip_high: float = 0.2
    normalizer: str = (
        "responses"  # mean over each response's tokens | tokens (of the batch) | constant (of all, alike)
    )
    kl: str = "k3"  # in the loss: k1 | k2 | k3; in the reward of each token: reward; or none


PRESETS = {
    "grpo": Objective(),
    # without the divisions that favour short wrong answers and easy or hard prompts: Liu et al. 2025 (arXiv:2503.20783)
    "dr_grpo": Objective(scale="none", normalizer="constant", kl="none"),
    # more room above, each token counts alike: Yu et al. 2025 (arXiv:2503.14476); its sampling is the trainer's
    "dapo": Objective(clip_high=0.28, normalizer="tokens", kl="none"),
    # a response against the others of its group: Ahmadian et al. 2024 (arXiv:2402.14740)
    "rloo": Objective(
        baseline="leave_one_out", scale="none", ratio="none", normalizer="constant", kl="reward"
    ),
    # no groups: Hu 2025 (arXiv:2501.03262)
    "reinforce_pp": Objective(baseline="batch_mean", scale="batch_std", normalizer="tokens", kl="reward"),
    # one ratio for the whole response: Zheng et al. 2025 (arXiv:2507.18071)
    "gspo": Objective(ratio="sequence", clip_low=3e-4, clip_high=4e-4, kl="none"),
    # a clipped token keeps its gradient: MiniMax 2025 (arXiv:2506.13585)
    "cispo": Objective(
        clipping="stop_gradient", clip_low=1.0, clip_high=0.28, normalizer="tokens", kl="none"
    ),
    "ppo": Objective(baseline="critic", scale="batch_std", normalizer="tokens", kl="reward"),
}


def group_advantages(rewards: Tensor, group: Tensor, baseline: str, scale: str) -> Tensor:
    """How much better each response is than its group (or the batch): float [B].

    rewards: float [B]; group: int64 [B], equal for responses to one prompt. A group whose rewards are all alike gets
    advantages of 0. The standard deviation is the corrected one, plus 1e-4, as in TRL. A response that is alone in its
    group has nothing to be compared with: its advantage is 0.
    """
    _, place, counts = torch.unique(group, return_inverse=True, return_counts=True)
    count = counts[place].to(rewards.dtype)
    mean = rewards.new_zeros(len(counts)).index_add(0, place, rewards)[place] / count
    if baseline == "batch_mean":
        advantages = rewards - rewards.mean()
    else:
        advantages = rewards - mean
        if baseline == "leave_one_out":  # r − (n·mean − r) / (n − 1)
            advantages = advantages * count / (count - 1).clamp(min=1.0)
    if scale == "group_std":
        squares = rewards.new_zeros(len(counts)).index_add(0, place, (rewards - mean) ** 2)[place]
        advantages = advantages / ((squares / (count - 1).clamp(min=1.0)).sqrt() + 1e-4)
    elif scale == "batch_std":
        advantages = advantages / (rewards.std() + 1e-4)
    return advantages


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    rows: Tensor,
    lengths: Tensor,
    objective: Objective,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each token, before it is normalised, its ratio and the clipped ratio: float [T] each.

    logprobs, old_logprobs, advantages: float [T]; rows: int64 [T], each token's response; lengths: int64 [B], tokens of
    each response that are learnt from.
    """
    log_ratio = logprobs - old_logprobs
    if objective.ratio == "sequence":
        means = log_ratio.new_zeros(len(lengths)).index_add(0, rows, log_ratio) / lengths.clamp(min=1)
        log_ratio = means[rows]
    ratio = log_ratio.exp()
    losses, clipped = clipped_surrogate(ratio, advantages, objective.clip_low, objective.clip_high)
    if objective.ratio == "none":
        losses = -advantages * logprobs
    elif objective.clipping == "stop_gradient":
        losses = -advantages * clipped.detach() * logprobs
    return losses, ratio, clipped


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor, estimator: str) -> Tensor:
    """An estimate of KL(policy ‖ reference) from the sampled token, in nats: float [T], with gradient.

    With d = log π − log π_ref: k1 is d, k2 is d²/2, k3 is e^−d − 1 + d. All but k2 are unbiased, and k2 alone has the
    KL's gradient, when the tokens are the policy's own. Source: Schulman 2020, "Approximating KL divergence".
    """
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    return difference**2 / 2 if estimator == "k2" else torch.exp(-difference) - 1 + difference


def token_weights(rows: Tensor, lengths: Tensor, normalizer: str, constant: int) -> tuple[Tensor, int]:
    """What each token's loss is multiplied by before the sum, float [T], and what the sum is divided by.

    tokens: 1 and T. responses: 1 / the response's length and B. constant: 1 and B × constant. The count may be summed
    over micro batches and ranks.
    """
    if normalizer == "responses":
        return 1.0 / lengths[rows], int((lengths > 0).sum())
    ones = torch.ones(len(rows), device=rows.device)
    return ones, len(rows) if normalizer == "tokens" else int((lengths > 0).sum()) * constant
