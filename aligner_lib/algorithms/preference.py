"""Losses on preference pairs: the loss of a reward model, and losses that train a policy without a reward model.

    B pairs of a better (chosen) and a worse (rejected) response to the same prompt

The losses of a policy take log-probabilities of whole responses, float [B] in nats, and return float [B]. The log-probability
of a response is the sum over its tokens, or the mean where the loss's docstring says so. `dpo_loss` takes four tensors, as in
the paper; the variants take a PairLogprobs. h is the margin: the chosen log-ratio to the reference less the rejected.
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
    """The mean square of the rewards at all tokens of each text, which keeps the rewards near 0: float [B].

    rewards: float [S, B], the reward at each token, padding on the right; lengths: int64 [B]. The Bradley–Terry loss
    determines only differences of rewards at the last token. A critic that starts from the reward model begins with the
    rewards at all tokens. Source: Eisenstein et al. 2023 (arXiv:2312.09244), who penalise (r_chosen + r_rejected)² at the
    last token.
    """
    is_token = torch.arange(len(rewards), device=rewards.device)[:, None] < lengths
    return (rewards**2 * is_token).sum(dim=0) / lengths


# ---- policies -------------------------------------------------------------------------------------------------------


class PairLogprobs(NamedTuple):
    """Log-probabilities of the chosen and the rejected responses under the same policy: float [B] each, in nats."""

    chosen: Tensor
    rejected: Tensor

    def minus(self, reference: PairLogprobs) -> PairLogprobs:
        """log π − log π_ref of both responses."""
        return PairLogprobs(self.chosen - reference.chosen, self.rejected - reference.rejected)

    def per_token(self, lengths: PairLogprobs) -> PairLogprobs:
        """The mean log-probability of a token, for both responses. lengths: the responses' numbers of tokens."""
        return PairLogprobs(self.chosen / lengths.chosen, self.rejected / lengths.rejected)

    @property
    def margin(self) -> Tensor:
        """chosen − rejected."""
        return self.chosen - self.rejected


def dpo_loss(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, beta: float
) -> Tensor:
    """−log σ(β h), where h is log π − log π_ref of the chosen response less that of the rejected response.

    chosen, rejected: the policy's log-probabilities; reference_chosen, reference_rejected: the reference's. The loss is
    ln 2 while the policy equals the reference. Source: Rafailov et al. 2023 (arXiv:2305.18290), equation 7.
    """
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -F.logsigmoid(beta * margin)


def conservative_dpo_loss(ratios: PairLogprobs, beta: float, label_smoothing: float) -> Tensor:
    """−(1 − ε) log σ(β h) − ε log σ(−β h): the loss assumes that a share ε of the labels is swapped, so its minimum has a
    finite margin.

    label_smoothing: ε. Source: Mitchell 2023, "A note on DPO with noisy preferences" (cDPO).
    """
    logits = beta * ratios.margin
    return -(1 - label_smoothing) * F.logsigmoid(logits) - label_smoothing * F.logsigmoid(-logits)


def robust_dpo_loss(ratios: PairLogprobs, beta: float, label_smoothing: float) -> Tensor:
    """[−(1 − ε) log σ(β h) + ε log σ(−β h)] / (1 − 2 ε): an unbiased estimate of DPO's loss when each label is swapped with
    probability ε.

    label_smoothing: ε. Source: Chowdhury et al. 2024 (arXiv:2403.00409), equation 12.
    """
    logits = beta * ratios.margin
    loss = label_smoothing * F.logsigmoid(-logits) - (1 - label_smoothing) * F.logsigmoid(logits)
    return loss / (1 - 2 * label_smoothing)


def ipo_loss(ratios: PairLogprobs, beta: float) -> Tensor:
    """(h − 1 / 2β)²: the margin has a target, and the loss grows again beyond the target.

    ratios: log-ratios to the reference, by convention means over tokens. Source: Azar et al. 2023 (arXiv:2310.12036),
    equation 17.
    """
    return (ratios.margin - 1 / (2 * beta)) ** 2


def simpo_loss(logprobs: PairLogprobs, beta: float, margin: float) -> Tensor:
    """−log σ(β (log π_chosen − log π_rejected) − γ), without a reference.

    logprobs: means over tokens; margin: γ. Source: Meng et al. 2024 (arXiv:2405.14734), equation 6.
    """
    return -F.logsigmoid(beta * logprobs.margin - margin)


def orpo_loss(logprobs: PairLogprobs, beta: float) -> Tensor:
    """−log p_chosen − β log σ(log odds_chosen − log odds_rejected), where odds = p / (1 − p).

    logprobs: means over tokens. The loss needs no reference, because its first term keeps the chosen response likely.
    Source: Hong et al. 2024 (arXiv:2403.07691), equations 6 and 7.
    """
    # a probability that rounds to 1 has infinite odds
    chosen, rejected = (part.clamp(max=-1e-6) for part in (logprobs.chosen, logprobs.rejected))
    log_odds = logprobs.margin - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return -logprobs.chosen - beta * F.logsigmoid(log_odds)


def kto_loss(ratios: Tensor, desirable: Tensor, kl: Tensor, beta: float) -> Tensor:
    """1 − σ(β (r − z)) for a desirable response, 1 − σ(β (z − r)) for an undesirable response. The loss needs no pairs.

    ratios: float [B], r = log π − log π_ref of each response; desirable: bool [B], the label; kl: float [], z ≥ 0, the KL of
    the policy to its reference, without gradient. Source: Ethayarajh et al. 2024 (arXiv:2402.01306), equation 8.
    """
    gains = beta * (ratios - kl)
    return 1 - torch.sigmoid(torch.where(desirable, gains, -gains))
