"""A recorded rollout of a run, from rollouts.jsonl, to compute what another objective would have learned from the rollout.

B responses, T tokens of all responses
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from aligner_lib.algorithms.objective import Objective
from aligner_lib.algorithms.policy_gradient import (
    gdpo_advantages,
    group_advantages,
    reinforce_pp_advantages,
    shaped_rewards,
    shaped_terms,
    token_gradient_weights,
)
from aligner_lib.errors import UserError
from aligner_lib.kinds.policy_gradient.settings import loop_settings, response_length, shaping_settings


@dataclass
class RecordedRollout:
    """The responses of a step, with all values that the objectives' losses need."""

    rewards: Tensor
    """float64 [B], after clipping and penalties; NaN if an environment failed."""
    terms: Tensor
    """float64 [B, K], each response's rewards before they are added, after clipping and with the penalties; see
    `algorithms.policy_gradient.shaped_terms`."""
    weights: Tensor
    """float64 [B, K], the weights of the terms."""
    group: Tensor
    """int64 [B]."""
    lengths: Tensor
    """int64 [B], the number of tokens in the loss: 0 if an environment failed, or if truncated responses are masked."""
    kl: list[Tensor]
    """For each response, float64 [tokens of the response]: log π − log π_ref."""
    advantages: list[Tensor]
    """For each response, float64 [tokens of the response], as computed in the run."""
    baseline: str
    """The baseline of the run's own objective."""
    kl_coef: float
    absolute_kl: bool
    max_length: int
    """The maximal length of a response in tokens."""

    def gradient_weights(self, objective: Objective, ratio: float = 1.0) -> list[list[float]]:
        """The gradient of the objective with respect to each token's log π, for each response. See algorithms.policy_gradient.

        Raises UserError for an objective that needs a critic or a teacher that the run did not have.
        """
        learnt = [i for i, length in enumerate(self.lengths.tolist()) if length]
        weights: list[list[float]] = [[0.0] * len(kl) for kl in self.kl]
        if not learnt:
            return weights
        parts = self._advantages(objective)
        gradients = token_gradient_weights(
            torch.cat([parts[i] for i in learnt]),
            torch.cat([self.kl[i] for i in learnt]),
            torch.repeat_interleave(torch.arange(len(learnt)), self.lengths[learnt]),
            self.lengths[learnt],
            objective,
            kl_coef=self.kl_coef,
            constant=self.max_length,
            ratio=ratio,
        )
        for i, part in zip(learnt, gradients.split(self.lengths[learnt].tolist())):
            weights[i] = part.tolist()
        return weights

    def _advantages(self, objective: Objective) -> list[Tensor]:
        if objective.baseline in ("critic", "teacher"):
            if objective.baseline != self.baseline:
                raise UserError(
                    f"baseline={objective.baseline}: the run had the baseline {self.baseline}, so its rollouts lack "
                    f"the values for {objective.baseline}: compare other objectives, or choose a run with "
                    f"baseline={objective.baseline}"
                )
            return self.advantages
        if objective.charges_kl_by_token:
            return self._reinforce_pp(objective)
        if objective.aggregation == "normalize_then_sum":
            of_responses = gdpo_advantages(self.terms, self.weights, self.group)
        else:
            rewards = self.rewards
            if objective.kl == "reward":
                kl = [part.abs() if self.absolute_kl else part for part in self.kl]
                rewards = rewards - self.kl_coef * torch.stack([part.sum() for part in kl])
            if not objective.compares_within_groups:
                rewards = rewards.masked_fill(self.lengths == 0, math.nan)
            of_responses = group_advantages(rewards, self.group, objective.baseline, objective.scale)
        return [advantage.expand(len(kl)) for advantage, kl in zip(of_responses, self.kl)]

    def _reinforce_pp(self, objective: Objective) -> list[Tensor]:
        kl = pad_sequence(self.kl, batch_first=True)
        advantages = reinforce_pp_advantages(
            self.rewards.nan_to_num(),
            kl.abs() if self.absolute_kl else kl,
            torch.arange(kl.shape[1]) < self.lengths[:, None],
            self.kl_coef,
            scaled=objective.scale == "batch_std",
        )
        return [of_one[: len(kl)] for of_one, kl in zip(advantages, self.kl)]


def rollout_of(records: list[dict], config: DictConfig, kl_coef: float, baseline: str) -> RecordedRollout:
    """Build the RecordedRollout from the train records of a step, in a PPO or GRPO run with these settings.

    kl_coef: the step's KL coefficient. baseline: the baseline of the run's objective. Records of an older run are
    grouped by their prompts if `group` is missing, and their penalties use `length` if `last_turn_length` is missing.
    """
    loop = loop_settings(config)
    finished = torch.tensor([record["finished"] for record in records])
    lengths = torch.tensor([record.get("last_turn_length", record["length"]) for record in records])
    rewards = torch.tensor([_number(record["reward"]) for record in records], dtype=torch.float64)
    shaping = {"lengths": lengths, "finished": finished, **shaping_settings(config)}
    rewards, (terms, weights) = (
        shaped_rewards(rewards, **shaping),
        shaped_terms(*_terms(records, config), **shaping),
    )
    learnt = rewards.isfinite() & (finished | (not loop.mask_truncated_responses))
    names = [record.get("group", record["prompt"]) for record in records]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return RecordedRollout(
        rewards=rewards,
        terms=terms,
        weights=weights,
        group=torch.tensor([numbers[name] for name in names]),
        lengths=torch.tensor([len(record["token_kl"]) for record in records]) * learnt,
        kl=[torch.tensor(record["token_kl"], dtype=torch.float64) for record in records],
        advantages=[torch.tensor(record["token_advantage"], dtype=torch.float64) for record in records],
        baseline=baseline,
        kl_coef=kl_coef,
        absolute_kl=loop.use_absolute_kl,
        max_length=response_length(config),
    )


def _terms(records: list[dict], config: DictConfig) -> tuple[Tensor, Tensor]:
    """The rewards of each response and their weights, as recorded: float64 [B, K] each. See rollouts.collect.Judgements."""
    environments, terms, weights = config.model.environments, [], []
    for record in records:
        named = environments.get(record.get("environment", ""), {}).get("rewards") or {}
        metrics, failed = record.get("metrics", {}), record["reward"] is None
        own = [math.nan if failed else metrics.get(name, 0.0) for name in named] or [
            _number(record["reward"])
        ]
        terms.append(torch.tensor(own, dtype=torch.float64))
        weights.append(torch.tensor([*named.values()] or [1.0], dtype=torch.float64))
    return pad_sequence(terms, batch_first=True), pad_sequence(weights, batch_first=True)


def _number(reward: float | None) -> float:
    return float("nan") if reward is None else reward
