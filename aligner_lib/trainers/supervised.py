"""Training on a fixed data set: each step is an optimizer step on a global batch of samples.

A trainer defines how samples form a batch, the loss, and the metrics. This module does the rest.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from aligner_lib.algorithms.batching import global_batch, length_grouped, longest_first, packed, share_of_rank
from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.datasets.chat_template import save_tokenizer
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import Engine, LossTerms
from aligner_lib.trainers.lr import LRSchedule


class Sample(Protocol):
    num_tokens: int  # tokens in all rows of the sample

    def __len__(self) -> int:
        """Tokens of the sample's longest row. Samples of similar length share a micro batch."""


S = TypeVar("S", bound=Sample)


@dataclass
class SupervisedTrainer(ABC, Generic[S]):
    """See trainers.loop.TrainerProtocol."""

    engine: Engine
    tokenizer: Tokenizer
    train: Sequence[S]
    validation: Sequence[S]
    lr_schedule: LRSchedule
    global_batch_size: int
    micro_batch_size: int
    validation_micro_batch_size: int
    seed: int
    shuffle: bool = True
    # the limit of tokens in a micro batch, which replaces the number of samples
    packed_tokens: int | None = None

    # -- what each trainer defines --------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, model, batch: TokenBatch, hidden: Tensor) -> LossTerms:
        """The loss and metrics of a micro batch, as sums. hidden: [S, rows, H]."""

    @abstractmethod
    def collate(self, samples: list[S]) -> TokenBatch:
        """Make a micro batch of these samples."""

    @abstractmethod
    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """Metrics under `group`/, computed from the loss's terms. The terms are already means over the global batch."""

    # -- what all trainers share ----------------------------------------------------------------------------------

    @property
    def controls(self) -> dict[str, float]:
        """The values that a user can change during the run, as in the settings."""
        return {"lr": self.lr_schedule.optim.lr}

    def change(self, name: str, value: float) -> None:
        """Set another learning rate, from the next step on."""
        assert name == "lr", f"{type(self).__name__} has no control {name!r}"
        self.lr_schedule.override = value

    def step(self, step: int) -> dict[str, float]:
        """Run an optimizer step on global batch number `step`, counted from 1. Return the step's metrics."""
        started = time.perf_counter()
        picked = global_batch(len(self.train), step - 1, self.global_batch_size, self.seed, self.shuffle)
        samples = [self.train[i] for i in picked]
        lr = self.lr_schedule(step)
        micro_batches = self._micro_batches(samples, self.micro_batch_size)
        terms = self.engine.train_step(micro_batches, self.loss, lr)
        seconds = time.perf_counter() - started
        return self.figures("train", terms) | {
            "train/grad_norm": terms["grad_norm"],
            "train/lr": lr,
            "train/step_time": seconds,
            "train/tokens": sum(sample.num_tokens for sample in samples),
            "train/padding": padding(micro_batches),
            "train/consumed_samples": step * self.global_batch_size,
            "train/epoch": step * self.global_batch_size / len(self.train),
        }

    def validate(self, step: int) -> dict[str, float]:
        """Compute metrics over the validation samples, with the current weights."""
        micro_batches = self._micro_batches(self.validation, self.validation_micro_batch_size)
        # Every validation reads the same rows, so the outputs of the frozen layers serve all validations of a run.
        with self.engine.keeping_frozen_outputs():
            return self.figures("validation", self._evaluated(micro_batches))

    def save(self, folder: Path) -> None:
        """Write this rank's share of weights and optimizer state, and the tokenizer."""
        self.engine.save(folder)
        if parallel.is_first_rank():
            save_tokenizer(self.tokenizer, folder)

    def load(self, folder: Path) -> None:
        """Load the state that `save` wrote."""
        self.engine.load(folder, with_optimizer=True)

    def _evaluated(self, micro_batches: list[TokenBatch]) -> dict[str, float]:
        """The loss's terms as means over all ranks' validation samples."""
        return self.engine.evaluate(micro_batches, self.loss)

    def _micro_batches(self, samples: Sequence[S], size: int) -> list[TokenBatch]:
        """This rank's share of the samples, with `size` samples in each micro batch."""
        return [self.collate([samples[i] for i in group]) for group in self.groups(samples, size)]

    def groups(self, samples: Sequence[S], size: int) -> list[list[int]]:
        """Divide this rank's samples into micro batches of `size` samples, or of as many as `packed_tokens` allows. Returns
        indices.

        Packed samples are distributed to the ranks by length, so that each rank has about as many tokens. The number of micro
        batches may differ between ranks, because no rank waits for another data-parallel rank before its own micro batches are
        done.
        """
        order = range(len(samples)) if self.packed_tokens is None else longest_first(list(map(len, samples)))
        own_samples = share_of_rank(order, parallel.dp_rank(), parallel.dp_size())
        if self.packed_tokens is None:
            groups = length_grouped([len(samples[i]) for i in own_samples], size)
        else:
            tokens = [samples[i].num_tokens for i in own_samples]
            groups = packed([len(samples[i]) for i in own_samples], tokens, self.packed_tokens)
        return [[own_samples[i] for i in group] for group in groups]


def padding(micro_batches: Sequence[TokenBatch]) -> float:
    """The fraction of padding in the padded rows of all ranks."""
    own_sizes = [(int(batch.lengths.sum()), batch.tokens.numel()) for batch in micro_batches]
    tokens, positions = map(sum, zip(*(pair for part in parallel.gather_over_dp(own_sizes) for pair in part)))
    return 1 - tokens / positions
