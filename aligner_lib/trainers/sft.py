"""Supervised fine-tuning: next-token loss on the answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.samples import SFTSample
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
        learnt = [sample.learnt if self.answer_only_loss else [True] * len(sample) for sample in samples]
        mask = pad_rows(learnt, False)[0]
        return AnswerBatch(tokens, lengths, mask[:, 1:])  # what column i predicts is token i + 1

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """The loss alone."""
        return {f"{group}/loss": terms["loss"]}
