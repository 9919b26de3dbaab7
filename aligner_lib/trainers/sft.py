"""Supervised fine-tuning: next-token loss on the answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.load import SFTSample
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.trainers.supervised import SupervisedTrainer


@dataclass
class AnswerBatch(TokenBatch):
    """Samples with the predictions that count. B samples, S the longest."""

    mask: Tensor  # bool [B, S-1]: predictions that count, those of the answer and its stop token


def answer_loss(model, batch: AnswerBatch, hidden: Tensor) -> LossTerms:
    """Cross-entropy of the answers' tokens, in nats. hidden: [S, B, H]."""
    logprobs, _ = selected_logprobs(model, batch.tokens, hidden, batch.mask)
    return LossTerms(-logprobs.sum(), batch.mask.sum())


@dataclass
class SFTTrainer(SupervisedTrainer[SFTSample]):
    """Samples are conversations; what the user says is read, and not learnt."""

    answer_only_loss: bool = True
    loss = staticmethod(answer_loss)

    def collate(self, samples: list[SFTSample]) -> AnswerBatch:
        """A row a sample, and the predictions of its answers as the mask."""
        tokens, lengths = pad_rows([sample.tokens for sample in samples], self.tokenizer.pad_id)
        starts = torch.tensor([sample.answer_start if self.answer_only_loss else 1 for sample in samples])
        columns = torch.arange(tokens.shape[1] - 1)
        mask = (columns >= starts[:, None] - 1) & (columns < lengths[:, None] - 1)
        if self.answer_only_loss:
            for row, sample in enumerate(samples):
                for start, end in sample.others:
                    mask[row, start - 1 : end - 1] = False
        return AnswerBatch(tokens, lengths, mask)

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """The loss alone."""
        return {f"{group}/loss": terms["loss"]}
