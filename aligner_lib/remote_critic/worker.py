"""The critic under orders: what every rank of the critic's job does with what its first rank was asked.

B samples of a request, D data-parallel ranks; rank d takes every D-th sample
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from aligner_lib.algorithms.batching import share_of_rank
from aligner_lib.datasets.batches import TokenBatch, concat_restore_order
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.critic import InProcessCritic
from aligner_lib.rollouts.records import Experience, Scores


class Command(Protocol):
    """One thing to do, the same on every rank."""

    def execute(self, worker: Worker) -> object:
        """Do it; the result is the same on every rank."""


@dataclass
class Wait:
    """Nothing to do: keeps the other ranks from running into their time limit."""

    def execute(self, worker: Worker) -> None:
        pass


@dataclass
class End:
    def execute(self, worker: Worker) -> None:
        pass


@dataclass
class Infer:
    batches: list[TokenBatch]

    def execute(self, worker: Worker) -> list[Scores]:
        return worker.infer(self.batches)


@dataclass
class Train:
    number: int  # of this update, from 1
    experience: Experience
    lr: float

    def execute(self, worker: Worker) -> dict[str, float]:
        return worker.train(self.experience, self.lr)


@dataclass
class Save:
    folder: Path

    def execute(self, worker: Worker) -> None:
        worker.critic.save(self.folder)
        parallel.barrier()


@dataclass
class Load:
    folder: Path | None  # None: back to the weights that the critic began with

    def execute(self, worker: Worker) -> None:
        worker.load(self.folder)


@dataclass
class Worker:
    """A critic (or a reward model alone) on this rank, split over data-parallel ranks as its job's layout says."""

    critic: InProcessCritic
    start: Path  # the model that it began as

    def infer(self, batches: list[TokenBatch]) -> list[Scores]:
        shares = [_share(batch.size) for batch in batches]
        # a rank without a sample in a small request sits it out: only its own replica's ranks wait for each other
        busy = [i for i, share in enumerate(shares) if share]
        mine: list[Scores | None] = [None] * len(batches)
        if busy:
            for i, scores in zip(busy, self.critic.scores([batches[i].rows(shares[i]) for i in busy])):
                mine[i] = scores
        return [_whole(parts, batch) for batch, *parts in zip(batches, *parallel.gather_over_dp(mine))]

    def train(self, experience: Experience, lr: float) -> dict[str, float]:
        return self.critic.train(experience.rows(_share(experience.size)), lr).result()

    def load(self, folder: Path | None) -> None:
        if folder is not None:
            self.critic.load(folder)
        else:
            self.critic.engine.load(self.start)
            self.critic.engine.reset_optimizer()


def _share(size: int) -> list[int]:
    return share_of_rank(range(size), parallel.dp_rank(), parallel.dp_size())


def _whole(parts: list[Scores | None], batch: TokenBatch) -> Scores:
    """The ranks' shares of a batch, in its order and at its width."""
    groups = [list(range(batch.size))[rank :: len(parts)] for rank in range(len(parts))]
    there = [rank for rank, part in enumerate(parts) if part is not None]
    scores = concat_restore_order([parts[rank] for rank in there], [groups[rank] for rank in there])
    values = torch.zeros(batch.size, batch.tokens.shape[1] - 1)
    values[:, : scores.values.shape[1]] = scores.values
    return Scores(rewards=scores.rewards, values=values)
