"""Who writes and who judges rollouts: a generator responds to prompts, a reward source says how good a response is, a value
model what was to be expected.

Policies and trainers know these alone: who answers may be in this process or in another one. Judges answer with futures,
and a call collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from torch import Tensor

from aligner_lib.megatron.generate import Response, Sampling
from aligner_lib.rollouts.records import CriticExperience, Rollouts


class GenerationBatch(Protocol):
    """Responses on their way. All ranks of a data-parallel replica do the same calls."""

    def add(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        """The response to a prompt (token ids), which is to be: it gets tokens, with the log-probabilities that they are
        drawn with, until it `is_over`.

        seed: below 2⁶³; with prompt and weights it makes the response, whatever else is in the batch.
        """

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Go on until all responses are over, or it is enough."""


class Generator(Protocol):
    def batch(self, rows: int) -> GenerationBatch:
        """A batch without any prompts yet. rows: how many responses it generates at the same time; a generator elsewhere may
        make batches of its own."""

    def refresh(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Generate with these weights from now on: the policy's, under Hugging Face's names, one at a time.

        All ranks call it together. A generator that has weights of its own goes through them on every rank, since putting
        them together is a collective operation; they are there on the first rank alone.
        """


class RewardSource(Protocol):
    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        """Ask for the rewards of this rank's rollouts: float32 [B]."""

    def collect(self, asked: list[Future[Tensor]]) -> list[Tensor]:
        """What was asked for, when all of it is there. Every rank calls it, whether it has asked for much or little.

        Raises Interruption on every rank where the source has gone away.
        """

    def reach(self) -> object:
        """Wait for a source that is away."""


class ValueModel(Protocol):
    def values(self, rollouts: Rollouts) -> Future[Tensor]:
        """Ask for the values of this rank's rollouts: float32 [B, S-1], the expected return at each prediction."""

    def collect(self, asked: list[Future[Tensor]]) -> list[Tensor]:
        """See RewardSource."""

    def train(self, experience: CriticExperience, lr: float) -> Future[dict[str, float]]:
        """One optimiser step on this rank's part of a global batch; its metrics.

        The result raises Interruption on every rank where the model has gone away.
        """

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state; returns when they are written.

        Raises Interruption on every rank where the model has gone away.
        """

    def load(self, folder: Path | None) -> None:
        """Go on from what `save` wrote; None: from before the first step. Waits for a model that is away."""
