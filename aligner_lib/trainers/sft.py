"""Supervised fine-tuning: next-token loss on the answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aligner_lib.algorithms.batching import global_batch, length_grouped, share_of_rank
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.load import SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron import parallel
from aligner_lib.megatron.cpu import DEVICE
from aligner_lib.megatron.engine import Engine, LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.trainers.lr import LRSchedule


@dataclass
class AnswerBatch(TokenBatch):
    """Samples with the predictions that count. B samples, S the longest."""

    mask: Tensor  # bool [B, S-1]: predictions that count, those of the answer and its stop token


@dataclass
class SFTTrainer:
    """One step is one optimiser step on a global batch; samples of like length share a micro batch."""

    engine: Engine
    tokenizer: Tokenizer
    train: list[SFTSample]
    validation: list[SFTSample]
    lr_schedule: LRSchedule
    global_batch_size: int
    micro_batch_size: int
    seed: int
    shuffle: bool = True
    answer_only_loss: bool = True
    controls = ("lr",)

    def change(self, name: str, value: float) -> None:
        assert name == "lr", f"SFT has no control {name!r}"
        self.lr_schedule.override = value

    def step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        picked = global_batch(len(self.train), step - 1, self.global_batch_size, self.seed, self.shuffle)
        samples = share_of_rank([self.train[i] for i in picked], parallel.dp_rank(), parallel.dp_size())
        lr = self.lr_schedule(step)
        terms = self.engine.train_step(self._micro_batches(samples), answer_loss, lr)
        seconds = time.perf_counter() - started
        return {
            "train/loss": terms["loss"],
            "train/grad_norm": terms["grad_norm"],
            "train/lr": lr,
            "train/step_time": seconds,
            "train/tokens": sum(len(self.train[i]) for i in picked),
            "train/consumed_samples": step * self.global_batch_size,
            "train/epoch": step * self.global_batch_size / len(self.train),
        }

    def validate(self, step: int) -> dict[str, float]:
        samples = share_of_rank(self.validation, parallel.dp_rank(), parallel.dp_size())
        return {"validation/loss": self.engine.evaluate(self._micro_batches(samples), answer_loss)["loss"]}

    def save(self, folder: Path) -> None:
        self.engine.save(folder)
        if parallel.is_first_rank():
            self.tokenizer.save(folder)

    def load(self, folder: Path) -> None:
        self.engine.load(folder, with_optimizer=True)

    def _micro_batches(self, samples: list[SFTSample]) -> list[AnswerBatch]:
        groups = length_grouped([len(sample) for sample in samples], self.micro_batch_size)
        return [self._collate([samples[i] for i in group]).to(DEVICE) for group in groups]

    def _collate(self, samples: list[SFTSample]) -> AnswerBatch:
        tokens, lengths = pad_rows([sample.tokens for sample in samples], self.tokenizer.pad_id)
        starts = torch.tensor([sample.answer_start if self.answer_only_loss else 1 for sample in samples])
        columns = torch.arange(tokens.shape[1] - 1)
        mask = (columns >= starts[:, None] - 1) & (columns < lengths[:, None] - 1)
        if self.answer_only_loss:
            for row, sample in enumerate(samples):
                for start, end in sample.others:
                    mask[row, start - 1 : end - 1] = False
        return AnswerBatch(tokens, lengths, mask)


def answer_loss(model, batch: AnswerBatch, hidden: Tensor) -> LossTerms:
    """Cross-entropy of the answers' tokens. hidden: [S, B, H]."""
    logprobs, _ = selected_logprobs(model, batch.tokens, hidden, batch.mask)
    return LossTerms(-logprobs.sum(), batch.mask.sum())
