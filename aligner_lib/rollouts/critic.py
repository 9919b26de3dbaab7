"""The critic side of PPO: a critic that learns values, and the reward model that it began as, in one resident model.

The actor's trainer knows `CriticService` only. Here it is answered in the same process; the same calls can be answered
by another job.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.algorithms.ppo import critic_loss
from aligner_lib.megatron.cpu import DEVICE
from aligner_lib.megatron.engine import Engine, FrozenWeights, LossTerms, NonFiniteError
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.records import Experience, Rollouts, Scores


class CriticService(Protocol):
    """What PPO's trainer asks of the critic side. Futures, so that another process can work meanwhile."""

    def infer(self, rollouts: Rollouts) -> Future[Scores]:
        """Ask for rewards and values of this rank's rollouts, in their order."""

    def fetch(self, asked: list[Future[Scores]]) -> list[Scores]:
        """What was asked for, when all of it is there. Every rank calls it, whether it has asked for much or little.

        Raises Interruption on every rank where the critic has gone away.
        """

    def train(self, experience: Experience, lr: float) -> Future[dict[str, float]]:
        """One optimiser step on this rank's part of a global batch; its metrics.

        No metrics where the critic has gone away meanwhile: it takes the step when it is back.
        """

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state; returns when they are written.

        Raises Interruption where the critic is away: then it is written what it lacks.
        """

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""


@dataclass
class InProcessCritic:
    """Critic and reward model in one process: one module, two sets of weights."""

    engine: Engine
    scale: RewardScale
    loss_clip: float
    micro_batch_size: int
    inference_micro_batch_size: int

    def __post_init__(self):
        self.reward_model = FrozenWeights(self.engine.module)

    def infer(self, rollouts: Rollouts) -> Future[Scores]:
        return _done(self.scores([rollouts])[0])

    def fetch(self, asked: list[Future[Scores]]) -> list[Scores]:
        return [scores.result() for scores in asked]

    def scores(self, batches: list[Rollouts]) -> list[Scores]:
        """Each batch's scores. The weights are exchanged once for all; no batch's numbers depend on another."""
        values = [self._values(batch)[:, :-1] for batch in batches]
        with self.reward_model.swap_in():
            rewards = [self._rewards(batch) for batch in batches]
        return [Scores(rewards=r, values=v) for r, v in zip(rewards, values)]

    def train(self, experience: Experience, lr: float) -> Future[dict[str, float]]:
        groups = length_grouped(experience.lengths.tolist(), self.micro_batch_size)
        micro_batches = [experience.rows(group).to(DEVICE) for group in groups]
        try:
            return _done(self.engine.train_step(micro_batches, self._loss, lr))
        except NonFiniteError as error:
            raise NonFiniteError(f"in the critic, {error}", settings="critic.") from error

    def save(self, folder: Path) -> None:
        self.engine.save(folder)

    def load(self, folder: Path) -> None:
        self.engine.load(folder, with_optimizer=True)

    def _loss(self, model, batch: Experience, hidden: Tensor) -> LossTerms:
        values = model.values(hidden[:-1]).t()  # [B, S-1]
        losses = critic_loss(values, batch.values, batch.returns, self.loss_clip)
        return LossTerms((losses * batch.response_mask).sum(), batch.response_mask.sum())

    def _rewards(self, rollouts: Rollouts) -> Tensor:
        """The reward model's number at the last token of each row: float32 [B]. It has to be in place."""
        at_tokens = self._values(rollouts)  # [B, S]
        return self.scale(at_tokens[torch.arange(rollouts.size), rollouts.lengths - 1])

    def _values(self, rollouts: Rollouts) -> Tensor:
        """The model's number at every token: float32 [B, S]; index i is said after reading token i."""

        def function(model, batch, hidden):
            return model.values(hidden).t()

        return self.engine.map_rows(rollouts, function, self.inference_micro_batch_size, extra=1)


class CriticAlone(InProcessCritic):
    """A critic whose reward model is elsewhere: it gives values, and rewards of 0."""

    def __post_init__(self):
        pass

    def scores(self, batches: list[Rollouts]) -> list[Scores]:
        return [Scores(torch.zeros(batch.size), self._values(batch)[:, :-1]) for batch in batches]


@dataclass
class RewardModelAlone(InProcessCritic):
    """A reward model whose critic is elsewhere: it gives rewards, and values of 0."""

    loss_clip: float = 0.0
    micro_batch_size: int = 1
    inference_micro_batch_size: int = 4

    def __post_init__(self):
        pass

    def scores(self, batches: list[Rollouts]) -> list[Scores]:
        return [
            Scores(self._rewards(batch), torch.zeros(batch.size, batch.tokens.shape[1] - 1))
            for batch in batches
        ]


def _done(result) -> Future:
    future = Future()
    future.set_result(result)
    return future
