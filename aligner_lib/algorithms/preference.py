"""Reward modelling from pairs: the Bradley–Terry loss (Ouyang et al. 2022, arXiv:2203.02155)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def preference_loss(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """The Bradley–Terry loss of each pair, −log σ(r_chosen − r_rejected).

    Arguments: float [B], raw rewards. Returns float [B] in nats; ln 2 where both rewards are equal.
    NeMo-Aligner's reward model has the same loss.
    """
    return -F.logsigmoid(chosen_rewards - rejected_rewards)


def preference_accuracy(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """1.0 for each pair whose chosen response has the higher reward, else 0.0; a tie gives 0.0.

    Arguments: float [B]. Returns float32 [B]. NeMo-Aligner counts ties in the same way.
    """
    return (chosen_rewards > rejected_rewards).float()
