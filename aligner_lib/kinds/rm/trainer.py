"""Reward-model training: the chosen response to a prompt gets a higher score than the rejected response.

Loss: Bradley–Terry, as in Ouyang et al. 2022 (arXiv:2203.02155).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from aligner_lib.algorithms.preference import centering_loss, preference_accuracy, preference_loss
from aligner_lib.config.functions import library_functions
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.samples import PairSample
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.trainers.supervised import SupervisedTrainer

PairLoss = Callable[[Tensor, Tensor], Tensor]
"""The losses of pairs, from the chosen and the rejected rewards: float [B] each."""


def pair_loss(
    model, batch: TokenBatch, hidden: Tensor, loss: PairLoss = preference_loss, centering: float = 0.0
) -> LossTerms:
    """The loss of a micro batch of B pairs. hidden: [S, 2B, H]; the reward is the output at the stop token.

    centering: the weight of the centering loss on both texts, which is added to the loss.
    """
    rows = torch.arange(batch.size, device=hidden.device)
    rewards = model.values(hidden[batch.lengths - 1, rows])  # [2B]
    chosen, rejected = rewards.chunk(2)
    sums = {
        "acc": preference_accuracy(chosen, rejected).sum(),
        "rewards_chosen_mean": chosen.sum(),
        "rewards_rejected_mean": rejected.sum(),
        "squares": (rewards**2).sum() / 2,
    }
    total = loss(chosen, rejected).sum()
    if centering:
        total = total + centering * centering_loss(model.values(hidden), batch.lengths).sum()
    return LossTerms(total, len(chosen), sums)


@dataclass
class RewardModelTrainer(SupervisedTrainer[PairSample]):
    """Samples are pairs. Chosen and rejected responses share a forward pass."""

    scale: RewardScale = field(default_factory=RewardScale)
    measure_scale: bool = True
    """Measure mean and standard deviation on the validation pairs."""
    centering: float = 0.0
    functions: SimpleNamespace = field(default_factory=partial(library_functions, "rm"), kw_only=True)
    _scale_of = -1
    """The number of optimizer steps after which the scale was measured."""

    def loss(self, model, batch: TokenBatch, hidden: Tensor) -> LossTerms:
        """See pair_loss."""
        return pair_loss(model, batch, hidden, self.functions.loss, self.centering)

    def collate(self, pairs: list[PairSample]) -> TokenBatch:
        """The chosen rows, then the rejected rows in the same order."""
        rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        return TokenBatch(*pad_rows(rows, self.tokenizer.pad_id))

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """Loss, accuracy, and mean and standard deviation of the raw rewards."""
        mean = (terms["rewards_chosen_mean"] + terms["rewards_rejected_mean"]) / 2
        named = {
            name: terms[name] for name in ("loss", "acc", "rewards_chosen_mean", "rewards_rejected_mean")
        }
        named |= {"rewards_all_mean": mean, "rewards_all_std": max(terms["squares"] - mean**2, 0.0) ** 0.5}
        return {f"{group}/{name}": value for name, value in named.items()}

    def validate(self, step: int) -> dict[str, float]:
        """Compute metrics over the validation pairs. Their rewards also determine the scale."""
        metrics = super().validate(step)
        if self.measure_scale:
            std = metrics["validation/rewards_all_std"]
            self.scale = RewardScale(metrics["validation/rewards_all_mean"], std if std > 0 else 1.0)
            self._scale_of = self.engine.steps
        return metrics

    def save(self, folder: Path) -> None:
        """Write this rank's share of the state, and the scale of the current weights."""
        if self.measure_scale and self._scale_of != self.engine.steps:
            # A run that stops between validations has the scale of older weights, which does not fit the current weights.
            self.validate(self.engine.steps)
        super().save(folder)
        if parallel.is_first_rank():
            self.scale.save(folder)

    def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote. A scale that is not measured remains as in the settings."""
        super().load(folder)
        if self.measure_scale:
            self.scale, self._scale_of = RewardScale.load(folder), self.engine.steps
