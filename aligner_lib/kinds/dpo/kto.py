"""KTO: learning from single responses that are labelled as desirable or undesirable, instead of pairs.

    B responses, each with an unrelated response, which belongs to another prompt

The loss compares a response's log-ratio log π − log π_ref with a reference point z, the KL of the policy to its reference. The
policy's mean log-ratio on unrelated responses estimates z. Algorithm: Ethayarajh et al. 2024 (arXiv:2402.01306).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aligner_lib.algorithms.preference import kto_loss
from aligner_lib.datasets.samples import LabelledSample
from aligner_lib.kinds.dpo.trainer import DPOTrainer, ResponseBatch, response_logprobs
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.trainers.statistics import mean_std


@dataclass
class LabelledBatch(ResponseBatch):
    """B rows in a training step; 2B rows while the reference computes, where the last B rows are the unrelated responses."""

    desirable: Tensor
    """bool [B]."""
    reference_point: Tensor
    """float32 [B]: z in nats, the same for all responses of a global batch."""


class KTOTrainer(DPOTrainer):
    """DPO's trainer for single responses with labels, instead of pairs."""

    def collate(self, samples: list[LabelledSample]) -> LabelledBatch:
        """The samples' responses, then the unrelated responses."""
        batch = super().collate(samples)
        desirable = torch.tensor([sample.desirable for sample in samples]).repeat(2)
        return LabelledBatch(**vars(batch), desirable=desirable, reference_point=torch.zeros(batch.size))

    def terms(self, logprobs: Tensor, batch: LabelledBatch) -> LossTerms:
        """The loss of B responses, from the policy's log-probability of each response: float [B], in nats."""
        settings, desirable, point = self.settings, batch.desirable, batch.reference_point
        ratios = logprobs - batch.reference_logprobs
        weights = torch.where(desirable, settings.desirable_loss_weight, settings.undesirable_loss_weight)
        losses = weights * kto_loss(ratios, desirable, point, settings.ref_policy_kl_penalty)
        with torch.no_grad():
            rewards = settings.ref_policy_kl_penalty * ratios
            right = torch.where(desirable, ratios > point, ratios < point)
            terms = {"acc": right.sum(), "desirable": desirable.sum(), "reference_point": point.sum()}
            for side, mask in (("chosen", desirable), ("rejected", ~desirable)):
                terms[f"rewards_{side}_mean"] = rewards[mask].sum()
                terms[f"logprobs_{side}"] = logprobs[mask].sum()
        return LossTerms(losses.sum(), len(losses), terms)

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """Means over all responses, over the desirable responses (chosen), and over the undesirable responses (rejected).

        A side without responses in the batch has no metrics.
        """
        share = {"chosen": terms["desirable"], "rejected": 1 - terms["desirable"]}
        named = {name: terms[name] for name in ("loss", "acc", "reference_point")}
        for side in (side for side in share if share[side] > 0):
            for name in (f"rewards_{side}_mean", f"logprobs_{side}"):
                named[name] = terms[name] / share[side]
        return {f"{group}/{name}": value for name, value in named.items()}

    def _micro_batches(self, samples: list[LabelledSample], size: int) -> list[LabelledBatch]:
        """Add the reference point to the responses: the mean log-ratio of the global batch's unrelated responses, at least
        0."""
        both = super()._micro_batches(samples, size)
        halves = [torch.arange(batch.size).chunk(2) for batch in both]
        unrelated = [batch.rows(second) for batch, (_, second) in zip(both, halves)]
        logprobs = self.engine.map(unrelated, response_logprobs)
        # log-probabilities that were computed before the first step are on the CPU
        gains = [sums.cpu() - batch.reference_logprobs.cpu() for sums, batch in zip(logprobs, unrelated)]
        point = max(mean_std(torch.cat(gains))[0], 0.0)
        batches = [batch.rows(first) for batch, (first, _) in zip(both, halves)]
        return [replace(batch, reference_point=torch.full((batch.size,), point)) for batch in batches]
