"""DPO increases the probability of the chosen response relative to the reference more than that of the rejected response.

    B samples of two rows each, S longest prompt + response

Algorithm: Rafailov et al. 2023 (arXiv:2305.18290). The variants are in aligner_lib.algorithms.preference_losses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

import torch
from omegaconf import DictConfig
from torch import Tensor

from aligner_lib.algorithms import preference
from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.algorithms.preference import PairLogprobs
from aligner_lib.algorithms.preference_losses import LOSSES
from aligner_lib.config.functions import library_functions
from aligner_lib.config.kind import load
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.datasets.samples import PreferenceSample
from aligner_lib.kinds.dpo.settings import takes_means
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.seeds import response_seed
from aligner_lib.trainers.statistics import mean_std
from aligner_lib.trainers.supervised import SupervisedTrainer


@dataclass
class ResponseBatch(TokenBatch):
    """The samples' first rows, then their second rows in the same order: chosen and rejected responses, 2B rows."""

    response_mask: Tensor
    """bool [2B, S-1]: True where the predicted token belongs to the response. The stop token is part of the response."""
    reference_logprobs: Tensor
    """float32 [2B], summed over the response; 0 for a loss without a reference."""


@dataclass
class DPOTrainer(SupervisedTrainer[PreferenceSample]):
    """Samples are pairs. Chosen and rejected responses share a forward pass."""

    settings: DictConfig = field(kw_only=True)
    """A DPOLoss."""
    policy: Policy | None = field(kw_only=True)
    """The engine with its reference; None: the loss has no reference, or the samples hold the reference's log-probabilities."""
    functions: SimpleNamespace = field(default_factory=partial(library_functions, "dpo"), kw_only=True)
    _of_validation: list[Tensor] | None = field(default=None, init=False)
    """The reference's log-probabilities of each validation micro batch, which are the same at every validation."""

    def collate(self, samples: list[PreferenceSample]) -> ResponseBatch:
        """Combine the samples' rows with a mask of the response tokens and, if known, the reference's log-probabilities."""
        rows = [sample.rows[side] for side in (0, 1) for sample in samples]
        starts = [sample.starts[side] for side in (0, 1) for sample in samples]
        known = [(sample.reference_logprobs or (0.0, 0.0))[side] for side in (0, 1) for sample in samples]
        tokens, lengths = pad_rows(rows, self.tokenizer.pad_id)
        columns = torch.arange(tokens.shape[1] - 1)
        mask = (columns >= torch.tensor(starts)[:, None] - 1) & (columns < lengths[:, None] - 1)
        return ResponseBatch(tokens, lengths, mask, torch.tensor(known))

    def loss(self, model, batch: ResponseBatch, hidden: Tensor) -> LossTerms:
        """The loss of a micro batch of B samples. hidden: [S, rows, H]."""
        return self.terms(response_logprobs(model, batch, hidden), batch)

    def terms(self, logprobs: Tensor, batch: ResponseBatch) -> LossTerms:
        """The loss of B pairs, from the policy's log-probability of each response: float [2B], in nats."""
        sums, reference = _pairs(logprobs), _pairs(batch.reference_logprobs)
        lengths = _pairs(batch.response_mask.sum(dim=1))
        means, policy = sums.per_token(lengths), sums
        if takes_means(self.settings):
            policy, reference = means, reference.per_token(lengths)
        losses = self._losses(policy, reference) - self.settings.sft_loss_weight * means.chosen
        with torch.no_grad():
            ratios = policy.minus(reference)
            rewards = PairLogprobs(*(self.settings.ref_policy_kl_penalty * ratio for ratio in ratios))
            terms = {
                "acc": preference.preference_accuracy(*rewards).sum(),
                "rewards_chosen_mean": rewards.chosen.sum(),
                "rewards_rejected_mean": rewards.rejected.sum(),
                "logprobs_chosen": sums.chosen.sum(),
                "logprobs_rejected": sums.rejected.sum(),
            }
        return LossTerms(losses.sum(), len(losses), terms)

    def figures(self, group: str, terms: dict[str, float]) -> dict[str, float]:
        """Return all terms as metrics, except the gradient norm."""
        return {f"{group}/{name}": value for name, value in terms.items() if name != "grad_norm"}

    def validate(self, step: int) -> dict[str, float]:
        """Compute metrics over the validation samples, and the policy's KL to its reference on the policy's own responses."""
        return super().validate(step) | self._kl(step)

    def _evaluated(self, micro_batches: list[ResponseBatch]) -> dict[str, float]:
        """Before the first step the policy is its own reference, whose log-probabilities the micro batches have."""
        if self.policy is None or self.engine.steps > 0:
            return super()._evaluated(micro_batches)
        return self.engine.means_without_pass(
            micro_batches, lambda batch: self.terms(batch.reference_logprobs, batch)
        )

    def _losses(self, policy: PairLogprobs, reference: PairLogprobs) -> Tensor:
        """The loss of each pair: float [B]. policy, reference: log-probabilities, as means or sums according to
        `takes_means`."""
        settings, beta = self.settings, self.settings.ref_policy_kl_penalty
        if settings.preference_loss == "dpo":
            return self.functions.loss(*policy, *reference, beta)
        loss = LOSSES[settings.preference_loss]
        constants = [
            default(beta) if settings[name] is None else settings[name]
            for name, default in loss.constants.items()
        ]
        logprobs = policy.minus(reference) if loss.has_reference else policy
        return load(loss.place)(logprobs, beta, *constants)

    def _micro_batches(self, samples: list[PreferenceSample], size: int) -> list[ResponseBatch]:
        """Make micro batches with the reference's log-probabilities, which are computed in the same micro batches as the
        policy's.

        Equal weights therefore give equal bits.
        """
        batches = super()._micro_batches(samples, size)
        if self.policy is None:
            known = all(sample.reference_logprobs is not None for sample in samples)
            has_reference = LOSSES[self.settings.preference_loss].has_reference
            assert known or not has_reference, "a sample without its reference"
            return batches
        known = self._of_validation if samples is self.validation else None
        if known is None:
            with self.policy.reference.swap_in():
                known = self.engine.map(batches, response_logprobs)
        if samples is self.validation:
            self._of_validation = known
        return [replace(batch, reference_logprobs=sums) for batch, sums in zip(batches, known)]

    def _kl(self, step: int) -> dict[str, float]:
        """The mean of log π − log π_ref over the tokens of the policy's own responses to validation prompts.

        The mean is an unbiased estimate of the policy's KL to the reference, computed as in PPO's rollouts.
        """
        if self.policy is None or self.settings.num_val_samples == 0:
            return {}
        room = self.engine.module.architecture.max_position_embeddings - self.policy.sampling.max_length
        prompts = [sample.rows[0][: sample.starts[0]] for sample in self.validation]
        prompts = [list(prompt) for prompt in dict.fromkeys(map(tuple, prompts)) if len(prompt) <= room]
        if not prompts:
            return {}
        chosen = list(enumerate(prompts[: self.settings.num_val_samples]))
        own_prompts = chosen[parallel.dp_rank() :: parallel.dp_size()]
        differences = [torch.zeros(0)]  # for a rank without a prompt
        for group in length_grouped(
            [len(prompt) for _, prompt in own_prompts], 2 * self.validation_micro_batch_size
        ):
            numbers, drawn = zip(*(own_prompts[i] for i in group))
            seeds = [response_seed(self.seed, step, number) for number in numbers]
            rollouts = self.policy.rollout(list(drawn), seeds, list(numbers))
            kl = self.policy.logprobs(rollouts)[0] - self.policy.reference_logprobs(rollouts)
            differences.append(kl[rollouts.response_mask])
        return {"validation/kl": mean_std(torch.cat(differences))[0]}


def response_logprobs(model, batch: ResponseBatch, hidden: Tensor) -> Tensor:
    """The log-probability of each row's response, summed over its tokens: float32 [2B] in nats."""
    mask = batch.response_mask
    logprobs, _ = selected_logprobs(model, batch.tokens, hidden, mask)
    return logprobs.new_zeros(len(mask)).index_add(0, mask.nonzero()[:, 0], logprobs)


def _pairs(rows: Tensor) -> PairLogprobs:
    return PairLogprobs(*rows.chunk(2))
