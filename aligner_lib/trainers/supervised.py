"""Training on samples that are there beforehand: a step is one optimiser step on a global batch of them.

A trainer says how samples become a batch, what their loss is and which figures come of it; all else is here.
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
    num_tokens: int  # of all that is computed for it

    def __len__(self) -> int:
        """Tokens of its longest row: samples of like length share a micro batch."""


S = TypeVar("S", bound=Sample)


@dataclass
class SupervisedTrainer(ABC, Generic[S]):
    """See trainers.loop.TrainerProtocol."""

    engine: Engine
    tokenizer: Tokenizer
    train: list[S]
    validation: list[S]
    lr_schedule: LRSchedule
    global_batch_size: int
    micro_batch_size: int
    validation_micro_batch_size: int
    seed: int
    shuffle: bool = True
    packed_tokens: int | None = None  # in a micro batch, in place of a number of samples
    controls = ("lr",)

    # -- what a trainer says --------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, model, batch: TokenBatch, hidden: Tensor) -> LossTerms:
        """A micro batch's loss and figures, as sums. hidden: [S, rows, H]."""

    @abstractmethod
    def collate(self, samples: list[S]) -> TokenBatch:
        """A micro batch of these samples."""

    @abstractmethod
    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """Metrics under `group`/ from the loss's terms, which are means over the global batch by now."""

    # -- what all do ----------------------------------------------------------------------------------------------

    def change(self, name: str, value: float) -> None:
        """Go on with another learning rate from the next step on."""
        assert name == "lr", f"{type(self).__name__} has no control {name!r}"
        self.lr_schedule.override = value

    def step(self, step: int) -> dict[str, float]:
        """One optimiser step on global batch number `step`, counted from 1; its metrics."""
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
        """Metrics over the validation samples, with the weights as they are."""
        micro_batches = self._micro_batches(self.validation, self.validation_micro_batch_size)
        return self.figures("validation", self.engine.evaluate(micro_batches, self.loss))

    def save(self, folder: Path) -> None:
        """Write this rank's share of weights and optimizer, and the tokenizer."""
        self.engine.save(folder)
        if parallel.is_first_rank():
            save_tokenizer(self.tokenizer, folder)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        self.engine.load(folder, with_optimizer=True)

    def _micro_batches(self, samples: Sequence[S], size: int) -> list[TokenBatch]:
        """This rank's share of the samples, `size` in a micro batch."""
        return [self.collate([samples[i] for i in group]) for group in self.groups(samples, size)]

    def groups(self, samples: Sequence[S], size: int) -> list[list[int]]:
        """Which of the samples are in each of this rank's micro batches: `size`, or as many as `packed_tokens` allows.

        Packed ones are dealt to the ranks by length, so that all have about as many tokens. The number of micro batches
        may differ between ranks: no rank waits for another data-parallel one before all of its own are done.
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
    """The share of padding in all ranks' padded rows."""
    own_sizes = [(int(batch.lengths.sum()), batch.tokens.numel()) for batch in micro_batches]
    tokens, positions = map(sum, zip(*(pair for part in parallel.gather_over_dp(own_sizes) for pair in part)))
    return 1 - tokens / positions
