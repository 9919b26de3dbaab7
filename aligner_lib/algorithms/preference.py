"""Reward modelling from pairs: the Bradley–Terry loss (Ouyang et al. 2022, arXiv:2203.02155)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def preference_loss(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """−log σ(r_chosen − r_rejected) for each pair: float [B] → [B]. ln 2 where both are equal."""
    return -F.logsigmoid(chosen_rewards - rejected_rewards)


def preference_accuracy(chosen_rewards: Tensor, rejected_rewards: Tensor) -> Tensor:
    """1.0 where the chosen response scores strictly higher: float [B]. A tie is no success."""
    return (chosen_rewards > rejected_rewards).float()
