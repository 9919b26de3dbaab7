"""Protocols of the parts that generate and judge rollouts: a generator responds to prompts, a reward source rates responses,
and a value model estimates the expected return.

Policies and trainers know only these protocols, so each part may run in the trainer's process or in another one. Reward sources
and value models return futures, and `collect` waits for the results.
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
    """Responses that are being generated. All ranks of a data-parallel replica make the same calls."""

    def add(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        """Add a prompt (token ids). Returns its response, to which the running batch appends tokens and their sampling
        log-probabilities until `response.is_over`.

        seed: below 2⁶³. The response depends only on seed, sampling, prompt and weights, not on the rest of the batch.
        """

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Generate until all responses are over, or `enough` returns True."""


class Generator(Protocol):
    def batch(self, rows: int) -> GenerationBatch:
        """A batch without prompts. rows: how many responses the batch generates at the same time; an external server may choose
        other batch sizes."""

    def refresh(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Use the policy's current weights from now on. weights: pairs of Hugging Face's name and the tensor, one at a time.

        All ranks call `refresh` together. A generator with its own copy of the weights iterates over `weights` on every rank,
        because assembling the tensors is a collective operation. Only the first rank receives tensors.
        """


class RewardSource(Protocol):
    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        """Request the rewards of this rank's rollouts: float32 [B]."""

    def collect(self, requested: list[Future[Tensor]]) -> list[Tensor]:
        """Wait for all requests. Every rank calls `collect`, also with an empty list.

        Raises Interruption on every rank when the reward source is lost.
        """

    def reach(self) -> object:
        """Wait until the source can be reached."""


class ValueModel(Protocol):
    def values(self, rollouts: Rollouts) -> Future[Tensor]:
        """Request the values of this rank's rollouts: float32 [B, S-1], the expected return at each prediction."""

    def collect(self, requested: list[Future[Tensor]]) -> list[Tensor]:
        """See RewardSource."""

    def train(self, experience: CriticExperience, lr: float) -> Future[dict[str, float]]:
        """Make an optimizer step on this rank's part of a global batch. Returns the step's metrics.

        The result raises Interruption on every rank when the value model is lost.
        """

    def save(self, folder: Path) -> None:
        """Save weights and optimizer state. Returns when the files are complete.

        Raises Interruption on every rank when the value model is lost.
        """

    def load(self, folder: Path | None) -> None:
        """Continue from a saved state; None: from the state before the first step. Waits until the model can be reached."""
