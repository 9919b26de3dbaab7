"""Learning from pairs: a reward model's loss, and those that train a policy without one.

    B pairs of a better (chosen) and a worse (rejected) response to the same prompt

A policy's losses take log-probabilities of whole responses, float [B] in nats, and return float [B]: sums over a response's
tokens, or means where a loss says so. DPO's takes them one by one, as its paper writes them; its variants take h, the margin
of the log-ratios to the reference, from a PairLogprobs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# ---- reward models --------------------------------------------------------------------------------------------------


def preference_loss(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """The Bradley–Terry loss of each pair, −log σ(r_chosen − r_rejected).

    Arguments: float [B], raw rewards. Returns float [B] in nats; ln 2 where both rewards are equal. Source: Ouyang et
    al. 2022 (arXiv:2203.02155); NeMo-Aligner's reward model has the same loss.
    """
    return -F.logsigmoid(chosen_rewards - rejected_rewards)


def preference_accuracy(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """1.0 for each pair whose chosen response has the higher reward, else 0.0; a tie gives 0.0.

    Arguments: float [B]. Returns float32 [B]. NeMo-Aligner counts ties in the same way.
    """
    return (chosen_rewards > rejected_rewards).float()


def centering_loss(rewards: Tensor, lengths: Tensor) -> Tensor:
    """How far from 0 a text's rewards are, those before its end too: the mean of their squares.

    rewards: float [S, B], one at each token, padding behind; lengths: int64 [B]. Returns float [B]. The Bradley–Terry loss
    fixes nothing but differences, and those at the last token alone; a critic begins with all the others. Source:
    Eisenstein et al. 2023 (arXiv:2312.09244), who penalise (r_chosen + r_rejected)² at the last token.
    """
    is_token = torch.arange(len(rewards), device=rewards.device)[:, None] < lengths
    return (rewards**2 * is_token).sum(dim=0) / lengths


# ---- policies -------------------------------------------------------------------------------------------------------


class PairLogprobs(NamedTuple):
    """Log-probabilities of both responses under one policy: float [B] each, in nats."""

    chosen: Tensor
    rejected: Tensor

    def minus(self, reference: PairLogprobs) -> PairLogprobs:
        """log π − log π_ref of both."""
        return PairLogprobs(self.chosen - reference.chosen, self.rejected - reference.rejected)

    def per_token(self, lengths: PairLogprobs) -> PairLogprobs:
        """The means of both over their tokens."""
        return PairLogprobs(self.chosen / lengths.chosen, self.rejected / lengths.rejected)

    @property
    def margin(self) -> Tensor:
        """chosen − rejected."""
        return self.chosen - self.rejected


def dpo_loss(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, beta: float
) -> Tensor:
    """−log σ(β h), h = (log π − log π_ref) of the chosen response less that of the rejected one.

    The first two are the policy's, the others the reference's. ln 2 where both are equal. Source: Rafailov et al. 2023
    (arXiv:2305.18290), equation 7.
    """
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -F.logsigmoid(beta * margin)


def conservative_dpo_loss(ratios: PairLogprobs, beta: float, label_smoothing: float) -> Tensor:
    """−(1 − ε) log σ(β h) − ε log σ(−β h): a share ε of the labels is taken to be turned, so the margin stays finite.

    Source: Mitchell 2023, "A note on DPO with noisy preferences" (cDPO).
    """
    logits = beta * ratios.margin
    return -(1 - label_smoothing) * F.logsigmoid(logits) - label_smoothing * F.logsigmoid(-logits)


def robust_dpo_loss(ratios: PairLogprobs, beta: float, label_smoothing: float) -> Tensor:
    """[−(1 − ε) log σ(β h) + ε log σ(−β h)] / (1 − 2 ε): unbiased, on average over labels turned with probability ε.

    Source: Chowdhury et al. 2024 (arXiv:2403.00409), equation 12.
    """
    logits = beta * ratios.margin
    turned = label_smoothing * F.logsigmoid(-logits) - (1 - label_smoothing) * F.logsigmoid(logits)
    return turned / (1 - 2 * label_smoothing)


def ipo_loss(ratios: PairLogprobs, beta: float) -> Tensor:
    """(h − 1 / 2β)²: the margin has a goal, and no reason to go beyond it. By convention of means over tokens.

    Source: Azar et al. 2023 (arXiv:2310.12036), equation 17.
    """
    return (ratios.margin - 1 / (2 * beta)) ** 2


def simpo_loss(logprobs: PairLogprobs, beta: float, margin: float) -> Tensor:
    """−log σ(β (log π_chosen − log π_rejected) − γ), of means over tokens; there is no reference. margin: γ.

    Source: Meng et al. 2024 (arXiv:2405.14734), equation 6.
    """
    return -F.logsigmoid(beta * logprobs.margin - margin)


def orpo_loss(logprobs: PairLogprobs, beta: float) -> Tensor:
    """−log p_chosen − β log σ(log odds_chosen − log odds_rejected), of means over tokens; odds = p / (1 − p).

    There is no reference: the first term keeps the policy at what was chosen. Source: Hong et al. 2024
    (arXiv:2403.07691), equations 6 and 7.
    """
    log_odds = logprobs.margin - (torch.log1p(-logprobs.chosen.exp()) - torch.log1p(-logprobs.rejected.exp()))
    return -logprobs.chosen - beta * F.logsigmoid(log_odds)


def kto_loss(ratios: Tensor, desirable: Tensor, kl: Tensor, beta: float) -> Tensor:
    """1 − σ(β (r − z)) for a desirable response, 1 − σ(β (z − r)) for an undesirable one: it takes no pairs.

    ratios: float [B], r = log π − log π_ref of one response each; desirable: bool [B]; kl: float [], z ≥ 0, the KL of the
    policy to its reference, without gradient. Source: Ethayarajh et al. 2024 (arXiv:2402.01306), equation 8.
    """
    gains = beta * (ratios - kl)
    return 1 - torch.sigmoid(torch.where(desirable, gains, -gains))
