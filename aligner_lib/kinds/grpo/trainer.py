"""GRPO and related algorithms: a policy gradient whose baseline comes from the other responses to the same prompt.

    B responses of this rank, S longest prompt + response

Algorithm: Shao et al. 2024 (arXiv:2402.03300); dynamic sampling: Yu et al. 2025 (arXiv:2503.14476).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from aligner_lib.algorithms.policy_gradient import gdpo_advantages, reinforce_pp_advantages, shaped_terms
from aligner_lib.config.functions import library_functions
from aligner_lib.datasets.batches import concat_restore_order
from aligner_lib.kinds.grpo.settings import rollouts_of_a_step
from aligner_lib.kinds.policy_gradient.environment_failures import note_failed_outcomes
from aligner_lib.kinds.policy_gradient.settings import shaping_settings
from aligner_lib.kinds.policy_gradient.trainer import PolicyGradientTrainer
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import Collected, EpisodeOutcome, Judgements
from aligner_lib.rollouts.environments.pool import EnvironmentFailure
from aligner_lib.rollouts.policy import TokenScorer
from aligner_lib.rollouts.records import Experience, Rollouts
from aligner_lib.rollouts.timers import Timers
from aligner_lib.trainers.statistics import mean_std


class GroupMember(NamedTuple):
    """A response with a reward, as its group compares it."""

    group: int
    reward: float
    """The reward from the reward model or the program."""
    shaped: tuple[float, ...]
    """What the update compares within the group, after clipping and penalties: the reward, or with `normalize_then_sum` each
    weighted reward."""
    is_learnt: bool
    """Whether the loss contains any token of the response."""


@dataclass
class GRPOTrainer(PolicyGradientTrainer):
    """See PolicyGradientTrainer. Groups of responses replace the critic."""

    functions: SimpleNamespace = field(default_factory=partial(library_functions, "grpo"), kw_only=True)
    teacher: TokenScorer | None = None
    """With the baseline `teacher`: the model whose log-probabilities the policy learns."""
    left_out: list[GroupMember] = field(init=False, default_factory=list)
    """The responses with a reward, of all ranks, that dynamic sampling left out of the current step."""
    failed_left_out: list[EpisodeOutcome] = field(init=False, default_factory=list)
    """The responses without a reward, of all ranks, that dynamic sampling left out of the current step."""

    def __post_init__(self):
        super().__post_init__()
        self.group_size = self.rollout_settings.num_generations_per_prompt
        self.draws_per_step = rollouts_of_a_step(self.config)

    @property
    def prompts_per_step(self) -> int:
        return self.rollout_settings.num_prompts_per_step

    def collect(self, step: int, timers: Timers) -> Collected:
        """Collect the step's rollout. Dynamic sampling draws further rollouts until enough groups differ in their shaped
        rewards."""
        if self.draws_per_step == 1:
            return super().collect(step, timers)
        drawn, members, failures = [], [], []
        for draw in range(self.draws_per_step):
            position = (step - 1) * self.draws_per_step + draw
            part = self._rollout(step, timers, position, first=draw * self.prompts_per_step)
            judgements = part.wait_for_judgements()
            note_failed_outcomes(part.outcomes, self.run)
            drawn.append(replace(part, wait_for_judgements=lambda known=judgements: known))
            failures += self.failures
            members += self._gathered(part.rollouts, judgements)
            differ = _groups_that_differ(members)
            if len(differ) >= self.prompts_per_step:
                break
        self.failures = failures
        others = [group for group in _by_group(members) if group not in differ]
        kept = set((differ + others)[: self.prompts_per_step])
        self.left_out = [member for member in members if member.group not in kept]
        # if every response failed, which the step reports, the step has the last rollout
        collected = _of_groups(kept, drawn, self.policy.tokenizer.pad_id) if kept else drawn[-1]
        self.failed_left_out = self._failed_outside(collected, drawn)
        return collected

    def _failed_outside(self, collected: Collected, drawn: list[Collected]) -> list[EpisodeOutcome]:
        """The responses of all ranks without a reward, in groups of `drawn` that are not in `collected`."""
        kept = set(collected.rollouts.group.tolist())
        failed = [
            outcome
            for part in drawn
            for outcome, group, reward in zip(
                part.outcomes, part.rollouts.group.tolist(), part.wait_for_judgements().rewards.tolist()
            )
            if group not in kept and not math.isfinite(reward)
        ]
        return [outcome for part in parallel.gather_over_dp(failed) for outcome in part]

    def outside_of_rollout(self) -> tuple[int, int]:
        failed, rewarded = super().outside_of_rollout()
        return failed + len(self.failed_left_out), rewarded + len(self.left_out)

    def failures_outside_of_rollout(self) -> list[EnvironmentFailure | EpisodeOutcome]:
        of_environments = [outcome for outcome in self.failed_left_out if outcome.environment]
        return super().failures_outside_of_rollout() + of_environments

    def experience(
        self,
        rollouts: Rollouts,
        judgements: Judgements,
        logprobs: Tensor,
        reference_logprobs: Tensor,
    ) -> tuple[Experience, dict[str, float]]:
        """Compute the advantages of a rollout, and metrics of its groups.

        A response's advantage compares its reward with the rewards of its group. All tokens of the response have the same
        advantage, except in REINFORCE++ and with a teacher, where each token has its own advantage.
        """
        mask, rewards = rollouts.response_mask, judgements.rewards
        if self.objective.baseline == "teacher":
            advantages = (self.teacher(rollouts)[0] - logprobs) * mask
            mean_and_std = mean_std(advantages[mask])
        elif self.objective.charges_kl_by_token:
            counts = self.loss_mask(rollouts, rewards)
            kl = (logprobs - reference_logprobs) * mask
            advantages = reinforce_pp_advantages(
                self.shaped(rollouts, rewards).nan_to_num(),
                kl.abs() if self.loop_settings.use_absolute_kl else kl,
                counts,
                self.kl_coef,
                scaled=self.objective.scale == "batch_std",
                sum_over_ranks=parallel.sum_over_dp,
            )
            mean_and_std = mean_std(advantages[counts])
        else:
            of_responses = self._advantages(rollouts, judgements, logprobs - reference_logprobs)
            advantages = of_responses[:, None] * mask
            mean_and_std = mean_std(of_responses[rewards.isfinite()])
        experience = Experience(
            **vars(rollouts),
            logprobs=logprobs,
            reference_logprobs=reference_logprobs,
            advantages=advantages,
            loss_mask=self.loss_mask(rollouts, rewards),
            sampler_weights=self.sampler_weights(rollouts, logprobs),
        )
        figures = self.figures_of_groups(rollouts, judgements)
        figures["advantages_mean"], figures["advantages_std"] = mean_and_std
        return experience, {f"train_rollouts/{name}": value for name, value in figures.items()}

    def _advantages(self, rollouts: Rollouts, judgements: Judgements, log_ratio: Tensor) -> Tensor:
        """The advantage of each response on this rank, compared with the responses of all ranks: float32 [B]."""
        if self.objective.aggregation == "normalize_then_sum":
            return self._normalized_then_summed(rollouts, judgements)
        shaped = self.shaped(rollouts, judgements.rewards)
        if self.objective.kl == "reward":
            kl = log_ratio * rollouts.response_mask
            kl = kl.abs() if self.loop_settings.use_absolute_kl else kl
            shaped = shaped - self.kl_coef * kl.sum(dim=1)
        objective = self.objective
        if not objective.compares_within_groups:
            # as in `reinforce_pp_advantages`, the batch's mean and deviation cover the responses in the loss
            learnt = self.loss_mask(rollouts, judgements.rewards).any(dim=1)
            shaped = shaped.masked_fill(~learnt, math.nan)
        return self.compared(rollouts, shaped, objective.baseline, objective.scale, self.functions.advantages)

    def _normalized_then_summed(self, rollouts: Rollouts, judgements: Judgements) -> Tensor:
        """GDPO's advantages, as in `_advantages`."""
        parts = parallel.gather_over_dp((rollouts.group, *self._shaped_terms(rollouts, judgements)))
        # a rank without a response of the environment with the most rewards has fewer columns
        columns = max(terms.shape[1] for _, terms, _ in parts)
        group, terms, weights = (
            torch.cat(
                [pad(part, (0, columns - part.shape[-1])) if part.dim() == 2 else part for part in of_ranks]
            )
            for of_ranks in zip(*parts)
        )
        advantages = gdpo_advantages(terms, weights, group, self.functions.advantages)
        return advantages.split([len(part) for part, *_ in parts])[parallel.dp_rank()]

    def _shaped_terms(self, rollouts: Rollouts, judgements: Judgements) -> tuple[Tensor, Tensor]:
        """The penalties and the rewards after clipping, and the weights of all: float32 [B, 2+K] each."""
        lengths, finished = rollouts.last_turn_lengths, rollouts.finished
        return shaped_terms(
            judgements.terms, judgements.weights, lengths, finished, **shaping_settings(self.config)
        )

    def figures_of_groups(self, rollouts: Rollouts, judgements: Judgements) -> dict[str, float]:
        """Metrics of all groups in the current step: the groups of `rollouts` and the groups that were left out."""
        figures = _group_figures(self.left_out + self._gathered(rollouts, judgements))
        if not self.objective.compares_within_groups:
            figures.pop("groups_alike", None)  # such a group is compared with the batch or a teacher
        return figures

    def _gathered(self, rollouts: Rollouts, judgements: Judgements) -> list[GroupMember]:
        """The responses of all ranks that have a reward."""
        rewards = judgements.rewards
        if self.objective.aggregation == "normalize_then_sum":
            terms, weights = self._shaped_terms(rollouts, judgements)
            compared = terms * weights
        else:
            compared = self.shaped(rollouts, rewards)[:, None]
        of_rank = [
            GroupMember(*values)
            for values in zip(
                rollouts.group.tolist(),
                rewards.tolist(),
                map(_without_padding, compared.tolist()),
                self.loss_mask(rollouts, rewards).any(dim=1).tolist(),
            )
            if math.isfinite(values[1])
        ]
        return [member for part in parallel.gather_over_dp(of_rank) for member in part]


def _without_padding(rewards: list[float]) -> tuple[float, ...]:
    """The rewards up to the last one that isn't 0. Ranks pad the rewards of a group with different numbers of zeros."""
    size = max((place for place, reward in enumerate(rewards, 1) if reward), default=0)
    return tuple(rewards[:size])


def _by_group(members: list[GroupMember]) -> dict[int, list[GroupMember]]:
    groups: dict[int, list[GroupMember]] = {}
    for member in sorted(members, key=lambda member: member.group):
        groups.setdefault(member.group, []).append(member)
    return groups


def _groups_that_differ(members: list[GroupMember]) -> list[int]:
    """The groups with a gradient: their shaped rewards differ, and at least one response is in the loss."""
    return [number for number, group in _by_group(members).items() if _differs(group)]


def _differs(group: list[GroupMember]) -> bool:
    return len({member.shaped for member in group}) > 1 and any(member.is_learnt for member in group)


def _group_figures(members: list[GroupMember]) -> dict[str, float]:
    """Metrics of all sampled groups, except groups without any reward."""
    groups = list(_by_group(members).values())
    if not groups:
        return {"groups": 0}
    rewards = [torch.tensor([member.reward for member in group], dtype=torch.float64) for group in groups]
    return {
        "groups": len(groups),
        "groups_alike": sum(not _differs(group) for group in groups) / len(groups),
        "reward_std_in_group": sum(values.std(correction=0).item() for values in rewards) / len(groups),
        "best_of_group": sum(values.max().item() for values in rewards) / len(groups),
    }


def _of_groups(kept: set[int], drawn: list[Collected], pad_id: int) -> Collected:
    """Collect the responses of the kept groups from several rollouts."""
    sizes = [part.rollouts.size for part in drawn]
    numbers = [list(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]
    joined = concat_restore_order([part.rollouts for part in drawn], numbers, fill=pad_id)
    outcomes = [outcome for part in drawn for outcome in part.outcomes]
    rows = torch.isin(joined.group, torch.tensor(sorted(kept))).nonzero().flatten()
    outcomes = [outcomes[i] for i in rows]
    return Collected(joined.rows(rows), outcomes, lambda: Judgements.of(outcomes))
