"""Reward-model training: of two responses to a prompt, the chosen one shall score higher."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from aligner_lib.algorithms.batching import global_batch, length_grouped, share_of_rank
from aligner_lib.algorithms.preference import preference_accuracy, preference_loss
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.load import PairSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.megatron.cpu import DEVICE
from aligner_lib.megatron.engine import Engine, LossTerms
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.trainers.lr import LRSchedule


@dataclass
class RewardModelTrainer:
    """One step is one optimiser step on a global batch of pairs; chosen and rejected go through one forward pass."""

    engine: Engine
    tokenizer: Tokenizer
    train: list[PairSample]
    validation: list[PairSample]
    lr_schedule: LRSchedule
    global_batch_size: int
    micro_batch_size: int
    seed: int
    scale: RewardScale = field(default_factory=RewardScale)
    measure_scale: bool = True  # take mean and std from the validation pairs
    controls = ("lr",)
    _scale_of = -1  # the optimiser steps after which it was measured

    def change(self, name: str, value: float) -> None:
        assert name == "lr", f"reward model training has no control {name!r}"
        self.lr_schedule.override = value

    def step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        picked = global_batch(len(self.train), step - 1, self.global_batch_size, self.seed)
        pairs = share_of_rank([self.train[i] for i in picked], parallel.dp_rank(), parallel.dp_size())
        lr = self.lr_schedule(step)
        terms = self.engine.train_step(self._micro_batches(pairs), pair_loss, lr)
        seconds = time.perf_counter() - started
        return _named("train", terms) | {
            "train/grad_norm": terms["grad_norm"],
            "train/lr": lr,
            "train/step_time": seconds,
            "train/tokens": sum(len(self.train[i].chosen) + len(self.train[i].rejected) for i in picked),
            "train/consumed_samples": step * self.global_batch_size,
            "train/epoch": step * self.global_batch_size / len(self.train),
        }

    def validate(self, step: int) -> dict[str, float]:
        pairs = share_of_rank(self.validation, parallel.dp_rank(), parallel.dp_size())
        metrics = _named("validation", self.engine.evaluate(self._micro_batches(pairs), pair_loss))
        if self.measure_scale:
            std = metrics["validation/rewards_all_std"]
            self.scale = RewardScale(metrics["validation/rewards_all_mean"], std if std > 0 else 1.0)
            self._scale_of = self.engine.steps
        return metrics

    def save(self, folder: Path) -> None:
        if self.measure_scale and self._scale_of != self.engine.steps:
            self.validate(
                self.engine.steps
            )  # stopped between validations: the scale of older weights won't do
        self.engine.save(folder)
        if parallel.is_first_rank():
            self.tokenizer.save(folder)
            self.scale.save(folder)

    def load(self, folder: Path) -> None:
        self.engine.load(folder, with_optimizer=True)
        self.scale, self._scale_of = RewardScale.load(folder), self.engine.steps

    def _micro_batches(self, pairs: list[PairSample]) -> list[TokenBatch]:
        groups = length_grouped([len(pair) for pair in pairs], self.micro_batch_size)
        return [self._collate([pairs[i] for i in group]).to(DEVICE) for group in groups]

    def _collate(self, pairs: list[PairSample]) -> TokenBatch:
        """The chosen rows, then the rejected ones in the same order."""
        rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        return TokenBatch(*pad_rows(rows, self.tokenizer.pad_id))


def pair_loss(model, batch: TokenBatch, hidden: Tensor) -> LossTerms:
    """The preference loss of a micro batch of pairs. hidden: [S, 2B, H]; a reward is read at the stop token."""
    rows = torch.arange(batch.size, device=hidden.device)
    rewards = model.values(hidden[batch.lengths - 1, rows])  # [2B]
    chosen, rejected = rewards.chunk(2)
    sums = {
        "acc": preference_accuracy(chosen, rejected).sum(),
        "rewards_chosen_mean": chosen.sum(),
        "rewards_rejected_mean": rejected.sum(),
        "squares": (rewards**2).sum() / 2,
    }
    return LossTerms(preference_loss(chosen, rejected).sum(), len(chosen), sums)


def _named(group: str, terms: dict[str, float]) -> dict[str, float]:
    mean = (terms["rewards_chosen_mean"] + terms["rewards_rejected_mean"]) / 2
    figures = {name: terms[name] for name in ("loss", "acc", "rewards_chosen_mean", "rewards_rejected_mean")}
    figures |= {"rewards_all_mean": mean, "rewards_all_std": max(terms["squares"] - mean**2, 0.0) ** 0.5}
    return {f"{group}/{name}": value for name, value in figures.items()}
