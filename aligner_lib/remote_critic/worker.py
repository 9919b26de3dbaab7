"""The commands that all ranks of a server's job execute, and the models for the commands.

B samples of a request, S longest sample, D data-parallel ranks; rank d takes every D-th sample
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from aligner_lib.algorithms.batching import share_of_rank
from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.critic import Critic, RewardModel
from aligner_lib.rollouts.records import CriticExperience


class Command(Protocol):
    """A command, the same on every rank."""

    def execute(self, worker: Worker) -> object:
        """Execute the command. The result is the same on every rank."""


@dataclass
class Wait:
    """Do nothing. Waiting ranks receive this command, so that no rank runs into its time limit."""

    def execute(self, worker: Worker) -> None:
        pass


@dataclass
class End:
    """End the service."""

    def execute(self, worker: Worker) -> None:
        pass


@dataclass
class Values:
    batches: list[TokenBatch]

    def execute(self, worker: Worker) -> list[Tensor]:
        return worker.values(self.batches)


@dataclass
class Rewards:
    batches: list[TokenBatch]

    def execute(self, worker: Worker) -> list[Tensor]:
        return worker.rewards(self.batches)


@dataclass
class Train:
    number: int
    """The number of this train step, from 1."""
    experience: CriticExperience
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
    folder: Path | None
    """None: back to the initial weights."""

    def execute(self, worker: Worker) -> None:
        worker.critic.load(self.folder)


@dataclass
class Worker:
    """A critic, a reward model, or both, on this rank. Data-parallel ranks share the samples."""

    critic: Critic | None
    reward_model: RewardModel | None

    def values(self, batches: list[TokenBatch]) -> list[Tensor]:
        """float32 [B, S-1] for each batch. The numbers of a batch do not depend on the other batches."""
        wholes = [torch.zeros(batch.tokens[:, 1:].shape) for batch in batches]
        return _map_shares(self.critic.values, batches, wholes)

    def rewards(self, batches: list[TokenBatch]) -> list[Tensor]:
        """float32 [B] for each batch."""
        return _map_shares(self.reward_model.score, batches, [torch.zeros(batch.size) for batch in batches])

    def train(self, experience: CriticExperience, lr: float) -> dict[str, float]:
        return self.critic.train(experience.rows(_share(experience.size)), lr).result()


def _share(size: int) -> list[int]:
    return share_of_rank(range(size), parallel.dp_rank(), parallel.dp_size())


def _map_shares(
    work: Callable[[TokenBatch], Future[Tensor]], batches: list[TokenBatch], wholes: list[Tensor]
) -> list[Tensor]:
    """The results of `work` for each batch, written into `wholes`. Each data-parallel rank computes a share of a batch."""
    own_parts: list[Tensor | None] = []
    for batch in batches:
        share = _share(batch.size)
        # When a small request has no sample for a rank, the rank skips the request. Only the ranks of the same replica wait for
        # each other.
        own_parts.append(work(batch.rows(share)).result() if share else None)
    for whole, *parts in zip(wholes, *parallel.gather_over_dp(own_parts)):
        for rank, part in enumerate(parts):
            if part is not None:
                # a share may be narrower than its batch
                whole[rank :: len(parts)][..., : part.shape[-1]] = part
    return wholes
