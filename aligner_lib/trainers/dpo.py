"""DPO: of two responses to a prompt, the chosen one shall gain more probability over the reference than the rejected one.

    B pairs, S longest prompt + response

Algorithm: Rafailov et al. 2023 (arXiv:2305.18290); its variants are losses of aligner_lib.algorithms.preference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from omegaconf import DictConfig
from torch import Tensor

from aligner_lib.algorithms import preference
from aligner_lib.algorithms.preference import PairLogprobs
from aligner_lib.config.kinds.dpo import OF_MEANS, WITHOUT_REFERENCE
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.load import PreferenceSample
from aligner_lib.megatron.engine import FrozenWeights, LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.trainers.supervised import SupervisedTrainer


@dataclass
class PairBatch(TokenBatch):
    """The chosen rows, then the rejected ones in the same order: 2B rows."""

    response_mask: Tensor  # bool [2B, S-1]: predictions of the responses' tokens, stop token included
    reference_logprobs: Tensor  # float32 [2B], summed over the response; 0 where a loss has no reference


@dataclass
class DPOTrainer(SupervisedTrainer[PreferenceSample]):
    """The reference are the weights that the engine had when this was made."""

    settings: DictConfig = field(kw_only=True)  # a config.kinds.dpo.DPOLoss

    def __post_init__(self):
        has_reference = self.settings.preference_loss not in WITHOUT_REFERENCE
        self.reference = FrozenWeights(self.engine.module) if has_reference else None

    def collate(self, pairs: list[PreferenceSample]) -> PairBatch:
        """The pairs' rows and which of their tokens are responses; the reference's log-probabilities are not there yet."""
        rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        starts = [pair.chosen_start for pair in pairs] + [pair.rejected_start for pair in pairs]
        tokens, lengths = pad_rows(rows, self.tokenizer.pad_id)
        columns = torch.arange(tokens.shape[1] - 1)
        mask = (columns >= torch.tensor(starts)[:, None] - 1) & (columns < lengths[:, None] - 1)
        return PairBatch(tokens, lengths, mask, torch.zeros(len(rows)))

    def loss(self, model, batch: PairBatch, hidden: Tensor) -> LossTerms:
        """The loss of a micro batch of B pairs. hidden: [S, 2B, H]."""
        sums = response_logprobs(model, batch, hidden)
        lengths = batch.response_mask.sum(dim=1)
        policy, reference = _pairs(sums), _pairs(batch.reference_logprobs)
        ratios = policy.minus(reference)
        losses = self._losses(policy, ratios, _pairs(lengths))
        with torch.no_grad():
            rewards = PairLogprobs(*(self.settings.ref_policy_kl_penalty * ratio for ratio in ratios))
            terms = {
                "acc": preference.preference_accuracy(*rewards).sum(),
                "rewards_chosen_mean": rewards.chosen.sum(),
                "rewards_rejected_mean": rewards.rejected.sum(),
                "logprobs_chosen": policy.chosen.sum(),
                "logprobs_rejected": policy.rejected.sum(),
            }
        return LossTerms(losses.sum(), len(losses), terms)

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """All terms."""
        return {f"{group}/{name}": value for name, value in terms.items() if name != "grad_norm"}

    def _losses(self, policy: PairLogprobs, ratios: PairLogprobs, lengths: PairLogprobs) -> Tensor:
        """Of each pair: float [B]. policy: log π; ratios: log π − log π_ref; both summed over `lengths` tokens."""
        settings, beta = self.settings, self.settings.ref_policy_kl_penalty
        means = PairLogprobs(policy.chosen / lengths.chosen, policy.rejected / lengths.rejected)
        if settings.preference_average_log_probs or settings.preference_loss in OF_MEANS:
            ratios = PairLogprobs(ratios.chosen / lengths.chosen, ratios.rejected / lengths.rejected)
        smoothing = 0.1 if settings.label_smoothing is None else settings.label_smoothing
        gamma = beta / 2 if settings.simpo_margin is None else settings.simpo_margin
        losses = {
            "dpo": lambda: preference.dpo_loss(ratios, beta),
            "cdpo": lambda: preference.conservative_dpo_loss(ratios, beta, smoothing),
            "robust": lambda: preference.robust_dpo_loss(ratios, beta, smoothing),
            "ipo": lambda: preference.ipo_loss(ratios, beta),
            "simpo": lambda: preference.simpo_loss(means, beta, gamma),
            "orpo": lambda: preference.orpo_loss(means, beta),
        }[settings.preference_loss]()
        return losses - settings.sft_loss_weight * means.chosen

    def _micro_batches(self, samples: list[PreferenceSample], size: int) -> list[PairBatch]:
        """With the reference's log-probabilities, computed in the same micro batches: equal weights give equal bits."""
        batches = super()._micro_batches(samples, size)
        if self.reference is None:
            return batches
        with self.reference.swap_in():
            known = self.engine.map(batches, response_logprobs)
        return [replace(batch, reference_logprobs=sums) for batch, sums in zip(batches, known)]


def response_logprobs(model, batch: PairBatch, hidden: Tensor) -> Tensor:
    """The log-probability of each row's response, summed over its tokens: float32 [2B] in nats."""
    mask = batch.response_mask
    logprobs, _ = selected_logprobs(model, batch.tokens, hidden, mask)
    return logprobs.new_zeros(len(mask)).index_add(0, mask.nonzero()[:, 0], logprobs)


def _pairs(rows: Tensor) -> PairLogprobs:
    return PairLogprobs(*rows.chunk(2))
