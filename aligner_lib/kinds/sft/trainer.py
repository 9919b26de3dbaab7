"""Supervised fine-tuning: next-token loss on the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

from torch import Tensor

from aligner_lib.config.functions import library_functions
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.samples import SFTSample
from aligner_lib.errors import FunctionError
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.trainers.supervised import SupervisedTrainer


@dataclass
class AnswerBatch(TokenBatch):
    """Samples with a mask of the predictions in the loss. B samples, S tokens of the longest sample."""

    mask: Tensor
    """bool [B, S-1]: True for the predictions in the loss, which predict the answer and its stop token."""


@dataclass
class SFTTrainer(SupervisedTrainer[SFTSample]):
    """Samples are conversations. The model reads the user's turns, and the loss covers only the assistant's turns."""

    answer_only_loss: bool = True
    functions: SimpleNamespace = field(default_factory=partial(library_functions, "sft"), kw_only=True)

    def loss(self, model, batch: AnswerBatch, hidden: Tensor) -> LossTerms:
        """Cross-entropy of the answers' tokens, in nats. hidden: [S, B, H]."""
        logprobs, _ = selected_logprobs(model, batch.tokens, hidden, batch.mask)
        return LossTerms(self.functions.loss(logprobs).sum(), batch.mask.sum())

    def collate(self, samples: list[SFTSample]) -> AnswerBatch:
        """Make a row for each sample. The mask covers the predictions of the sample's answers."""
        tokens, lengths = pad_rows([sample.tokens for sample in samples], self.tokenizer.pad_id)
        learnt = [sample.learnt if self.answer_only_loss else [True] * len(sample) for sample in samples]
        return AnswerBatch(tokens, lengths, self.functions.loss_mask(pad_rows(learnt, False)[0]))

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """Return only the loss. Raises FunctionError if the user's mask leaves no token in the loss."""
        if not terms:
            raise FunctionError(f"functions.loss_mask leaves no token of the {group} batch in the loss")
        return {f"{group}/loss": terms["loss"]}
