"""Policy gradients: the policy responds to prompts, the responses get rewards, and responses that are better than expected
become more likely.

    B responses of this rank, S longest prompt + response, T tokens in the loss

PPO (kinds/ppo) and GRPO (kinds/grpo) share this step. The expected reward is a critic's value in PPO and a group's mean in
GRPO. The objective's switches are in aligner_lib.algorithms.objective, and its mathematics in
aligner_lib.algorithms.policy_gradient.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import DictConfig
from torch import Tensor

from aligner_lib.algorithms import policy_gradient
from aligner_lib.algorithms.batching import share_of_rank
from aligner_lib.algorithms.objective import Objective
from aligner_lib.datasets.batches import TokenBatch, alike_grouped
from aligner_lib.datasets.chat_template import save_tokenizer
from aligner_lib.kinds.policy_gradient.environment_failures import (
    FailedRewards,
    given_tasks,
    note_failed_outcomes,
)
from aligner_lib.kinds.policy_gradient.rollout_metrics import (
    copied_metric,
    environment_metrics,
    experience_metrics,
    good_metric,
    rollout_metrics,
    rollout_records,
    sampler_mismatch,
)
from aligner_lib.kinds.policy_gradient.settings import (
    KL_HORIZON,
    group_of,
    loop_settings,
    recomputes_logprobs,
    response_length,
    rollout_settings,
    shaping_settings,
    val_rollout_micro_batch_size,
)
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.rollouts.collect import Collected, EpisodeOutcome, Judgements, RolloutCollector
from aligner_lib.rollouts.environments.pool import EnvironmentFailure
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.records import Experience, Rollouts, WeightedBatch
from aligner_lib.rollouts.tasks import Task, TaskSource
from aligner_lib.rollouts.timers import Timers
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import BoundExceeded
from aligner_lib.trainers.lr import LRSchedule
from aligner_lib.trainers.statistics import mean_std

logger = logging.getLogger(__name__)


class KLBoundError(BoundExceeded):
    """The policy's KL to its reference exceeds the configured bound."""


@dataclass
class PolicyGradientTrainer(ABC):
    """Trains a policy. A step consists of a rollout and the optimizer steps on this rollout."""

    policy: Policy
    collector: RolloutCollector
    tasks: TaskSource
    objective: Objective
    lr_schedule: LRSchedule
    config: DictConfig
    """A PPOConfig or a GRPOConfig."""
    run: RunWriter | None
    """None on all ranks except the first."""
    functions: SimpleNamespace = field(kw_only=True)
    """The kind's replaceable functions, or the user's functions in their place."""
    group_size: int = field(init=False, default=1)
    """Responses to each prompt."""
    draws_per_step: int = field(init=False, default=1)
    """The largest number of rollouts in a step. A step reserves the prompts of all of them."""
    failures: list[EnvironmentFailure] = field(init=False, default_factory=list)
    """The environments' failures to provide prompts in the current step."""
    failed_rewards: FailedRewards = field(init=False, default_factory=FailedRewards)
    """Counts the steps in which no response had a reward."""
    rollout_settings: DictConfig = field(init=False)
    """model.ppo or model.grpo."""
    loop_settings: DictConfig = field(init=False)
    """trainer.ppo or trainer.grpo."""
    kl_coef: float = field(init=False)
    """The weight of the KL to the reference in the current step."""
    recomputes: bool = field(init=False)
    """Whether the policy computes the responses' log-probabilities again before it learns from them."""

    def __post_init__(self):
        self.rollout_settings, self.loop_settings = rollout_settings(self.config), loop_settings(self.config)
        self.kl_coef = self.loop_settings.initial_policy_kl_penalty
        before_updates = self.objective.kl == "reward" or self.objective.baseline in ("critic", "teacher")
        # generation computes token by token and training whole rows, which bf16 rounds differently
        needed = before_updates or self.policy.computes_in_bf16
        self.recomputes = recomputes_logprobs(self.config, needed)

    @property
    def controls(self) -> dict[str, float]:
        """The values that a user can change during the run, as in the settings. A KL coefficient with a target adapts by itself
        and can't be changed; an objective without a KL has no coefficient."""
        lr = {"lr": self.lr_schedule.optim.lr}
        if self.objective.kl == "none" or self.loop_settings.target_kl is not None:
            return lr
        return lr | {"kl_coef": self.loop_settings.initial_policy_kl_penalty}

    def change(self, name: str, value: float) -> None:
        """Set the learning rate or the KL coefficient, from the next step on."""
        if name == "lr":
            self.lr_schedule.override = value
        else:
            assert name == "kl_coef", f"there is no control {name!r}"
            self.kl_coef = value

    def step(self, step: int) -> dict[str, float]:
        """Run a step: rollout, advantages, updates. Return the step's metrics.

        Raises KLBoundError, RewardsFailedError, and NonFiniteError for a loss that is not finite.
        """
        timers = Timers()

        # 1  Rollout: the policy responds to the step's prompts. A reward model or programs judge the responses.
        with timers("rollout_time"):  # NeMo-Aligner's name, whose time includes stage 2
            collected = self.collect(step, timers)

            # 2  Log-probabilities of the responses under the policy and under its reference.
            rollouts = collected.rollouts
            with timers("logprobs"):
                logprobs, entropies = self._logprobs(rollouts)
            with timers("init_logprobs"):
                reference_logprobs = self.policy.reference_logprobs(rollouts)
            with timers("critic_wait"):
                judgements = collected.wait_for_judgements()
                rewards = judgements.rewards

        # 3  Rewards become advantages: how much better than expected each token was.
        experience, metrics = self.experience(rollouts, judgements, logprobs, reference_logprobs)
        metrics |= rollout_metrics("train_rollouts", rollouts, rewards, *self.outside_of_rollout())
        metrics |= copied_metric("train_rollouts", self.policy.tokenizer, rollouts)
        metrics |= good_metric("train_rollouts", self.policy.tokenizer, rollouts)
        metrics |= experience_metrics(experience, entropies, self.loop_settings.use_absolute_kl)
        if self.recomputes:
            metrics |= sampler_mismatch(experience)
        metrics |= environment_metrics("train", collected, rewards, self.failures_outside_of_rollout())
        by_program = torch.tensor([float(outcome.by_program) for outcome in collected.outcomes])
        metrics["train_rollouts/judged_by_program"] = mean_std(by_program)[0]
        metrics |= self.failed_rewards.count(metrics)
        self._report("train", step, collected, rewards, experience)
        self.failed_rewards.check(step, collected.outcomes)
        self._check_kl(metrics["train_rollouts/init_policy_kl"], step)

        # 4  The policy learns from the experience, global batch by global batch.
        with timers("train_time"):
            metrics |= self.learn(step, experience, timers)
        if self.objective.kl != "none":
            metrics["train_rollouts/kl_coef"] = self.kl_coef
        self._adapt_kl_coef(metrics["train_rollouts/kl"])
        return metrics | self._bookkeeping(step) | timers.seconds

    def validate(self, step: int) -> dict[str, float | None]:
        """Compute rewards on held-out prompts, sampled with the same random numbers in every validation.

        Empty if no environment has held-out prompts.
        """
        tasks, failures = given_tasks(self.tasks.validation(self.rollout_settings.num_val_samples), self.run)
        if not tasks:
            return {}
        tasks = share_of_rank(
            [(number, number, task) for number, task in enumerate(tasks)],
            parallel.dp_rank(),
            parallel.dp_size(),
        )
        collected = self.collector(
            tasks,
            0,
            val_rollout_micro_batch_size(self.config),
            self.tasks.environments.get("validation"),
            greedy=self.rollout_settings.val_use_greedy,
        )
        rewards = collected.wait_for_judgements().rewards
        self._report("validation", step, collected, rewards)
        metrics = rollout_metrics("val_rollouts", collected.rollouts, rewards, len(failures))
        metrics |= copied_metric("val_rollouts", self.policy.tokenizer, collected.rollouts)
        metrics |= good_metric("val_rollouts", self.policy.tokenizer, collected.rollouts)
        return metrics | environment_metrics("val", collected, rewards, failures)

    def save(self, folder: Path) -> None:
        """Write this rank's share of the policy, the tokenizer, and the KL coefficient if the coefficient follows a target."""
        self.policy.engine.save(folder)
        if parallel.is_first_rank():
            save_tokenizer(self.policy.tokenizer, folder)
            if self.loop_settings.target_kl is not None:
                state = {"kl_coef": self.kl_coef, "initial": self.loop_settings.initial_policy_kl_penalty}
                (folder / "kl_coef.json").write_text(json.dumps(state))

    def load(self, folder: Path | None) -> None:
        """Restore the state that `save` wrote; None: the state before the first step. Waits until the reward source is
        ready."""
        if self.collector.reward_source is not None:
            self.collector.reward_source.reach()
        self.policy.engine.go_on_from(folder)
        self.kl_coef, self.lr_schedule.override = self.loop_settings.initial_policy_kl_penalty, None
        saved = folder and folder / "kl_coef.json"  # a run without a target wrote no such file
        if self.loop_settings.target_kl is not None and saved and saved.is_file():
            state = json.loads(saved.read_text())
            if not isinstance(state, dict):  # of a version that wrote the coefficient alone
                self.kl_coef = state
            elif state["initial"] == self.kl_coef:  # a changed setting begins anew
                self.kl_coef = state["kl_coef"]

    # -- what PPO and GRPO each define ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def prompts_per_step(self) -> int:
        """The number of prompts in a rollout."""

    def outside_of_rollout(self) -> tuple[int, int]:
        """The numbers of the step's responses outside its rollout, on all ranks: without a reward, and with a reward."""
        return len(self.failures) * self.group_size, 0

    def failures_outside_of_rollout(self) -> list[EnvironmentFailure | EpisodeOutcome]:
        """The environments' failures outside the step's rollout, on all ranks: each prompt that failed, and each response that
        was left out."""
        return self.failures

    @abstractmethod
    def experience(
        self,
        rollouts: Rollouts,
        judgements: Judgements,
        logprobs: Tensor,
        reference_logprobs: Tensor,
    ) -> tuple[Experience, dict[str, float]]:
        """Compute the experience with its advantages, and metrics of the computation.

        logprobs and reference_logprobs: float [B, S-1].
        """

    # -- the stages -----------------------------------------------------------------------------------------------

    def collect(self, step: int, timers: Timers) -> Collected:
        """Collect the step's rollout."""
        return self._rollout(step, timers, step - 1)

    def _rollout(self, step: int, timers: Timers, position: int, first: int = 0) -> Collected:
        """Collect a rollout for the step.

        position: of the batch of prompts in the source's order. first: the number of the rollout's first group.
        """
        tasks, self.failures = given_tasks(self.tasks.train(position, self.prompts_per_step), self.run)
        return self.collector(
            self._share(tasks, first),
            step,
            self.rollout_settings.rollout_micro_batch_size,
            self.tasks.environments.get("train"),
            with_values=self.collector.value_model is not None,
            timers=timers,
        )

    def learn(self, step: int, experience: Experience, timers: Timers) -> dict[str, float]:
        """Make rollout_epochs passes of optimizer steps over the rollout's global batches. Return means of the updates'
        metrics."""
        figures: list[dict[str, float]] = []
        bound = self.loop_settings.max_policy_kl
        for batch in self.global_batches(experience) * self.rollout_settings.rollout_epochs:
            if figures and bound is not None and figures[-1]["policy_kl"] > bound:
                logger.info(
                    f"step {step}: policy_kl={figures[-1]['policy_kl']:.4f} is beyond max_policy_kl={bound} after "
                    f"{len(figures)} updates; the step's others are left out"
                )
                break
            if update := self._update(batch):
                figures.append(update)
        if not figures:
            return {}
        metrics = {}
        if not self.recomputes:  # the first update compared generation's log-probabilities with its own
            metrics |= {f"train_rollouts/{name}": value for name, value in _mismatch_of(figures).items()}
        metrics |= {f"train_optim/{name}": value for name, value in means(figures).items()}
        metrics["train_optim/first_ppo_ratio"] = figures[0]["ppo_ratio"]
        metrics["train_optim/updates"] = len(figures)
        metrics["train_optim/tokens"] = sum(update["tokens"] for update in figures)
        metrics["train_optim/optim_step"] = self.policy.engine.steps
        return metrics

    def global_batches(self, experience: Experience) -> list[Experience]:
        """This rank's part of each global batch, in the order of the groups."""
        numbers = [n for part in parallel.gather_over_dp(experience.group.tolist()) for n in part]
        groups = sorted(set(numbers))
        size = self.config.model.global_batch_size // self.group_size
        batches = [groups[i : i + size] for i in range(0, len(groups), size)]
        rows = [torch.isin(experience.group, torch.tensor(batch)).nonzero().flatten() for batch in batches]
        return [_rows_or_an_empty_row(experience, part) for part in rows]

    def _weighted(self, batch: Experience) -> WeightedBatch | None:
        """Select the rows with a gradient, and weight their tokens within the global batch. None if no rank has such rows."""
        lengths = batch.loss_mask.sum(dim=1)
        moves = (batch.advantages != 0) & batch.loss_mask
        learns = batch.loss_mask.any(dim=1) if self._learns_from_all() else moves.any(dim=1)
        sums = torch.stack([(lengths > 0).sum(), lengths.sum(), (lengths * learns).sum()])
        responses, tokens, learnt = parallel.sum_over_dp(sums).tolist()
        if not learnt:
            return None
        weights = policy_gradient.token_weights(
            lengths, self.objective.normalizer, response_length(self.config), responses, tokens, learnt
        )
        # only the fields of Experience, because a critic's experience has more fields
        parts = {entry.name: getattr(batch, entry.name) for entry in fields(Experience)}
        whole = WeightedBatch(**parts, token_weights=weights)
        return _rows_or_an_empty_row(whole, learns.nonzero().flatten())

    def _learns_from_all(self) -> bool:
        """Whether a response without an advantage also has a gradient."""
        held = self.objective.kl_in_loss and self.kl_coef > 0
        explores = self.rollout_settings.entropy_bonus > 0
        return held or explores or self.objective.baseline in ("critic", "teacher")

    def _update(self, part: Experience) -> dict[str, float]:
        """Run an optimizer step and return its metrics. If no token of the global batch has a gradient, return {} without a
        step."""
        batch = self._weighted(part)
        if batch is None:
            return {}
        groups = alike_grouped(batch, self.config.model.micro_batch_size)
        micro_batches: list[TokenBatch] = [batch.rows(group) for group in groups]
        lr = self.lr_schedule(self.policy.engine.steps + 1)  # the schedule begins with the first update
        terms = self.policy.engine.train_step(micro_batches, self.loss, lr)
        tokens = parallel.sum_over_dp(batch.loss_mask.sum()).item()
        return terms | {"lr": lr, "tokens": tokens} if terms else {}

    def loss(self, model, batch: WeightedBatch, hidden: Tensor) -> LossTerms:
        """The objective over the tokens of loss_mask, minus the entropy bonus. hidden: [S, B, H]."""
        mask, objective = batch.loss_mask, self.objective
        bonus = self.rollout_settings.entropy_bonus
        logprobs, entropies = selected_logprobs(
            model, batch.tokens, hidden, mask, self.policy.sampling.temperature, with_entropy=bonus != 0
        )
        rows, old = mask.nonzero()[:, 0], batch.logprobs[mask]
        losses, ratio, clipped = policy_gradient.policy_loss(
            logprobs, old, batch.advantages[mask], rows, mask.sum(dim=1), objective, self.functions.loss
        )
        losses = losses * batch.sampler_weights[mask]
        kl = torch.zeros_like(losses)
        if objective.kl_in_loss:
            kl = self.functions.kl(logprobs, batch.reference_logprobs[mask], objective.kl)
            losses = losses + self.kl_coef * kl
        entropy = bonus * entropies.sum() if entropies is not None else losses.new_zeros(())
        log_ratio = (logprobs - old).detach()
        sums = {
            "ppo_ratio": ratio.sum(),
            "policy_kl": (log_ratio.exp() - 1 - log_ratio).sum(),
            "scaled_entropy": entropy,
        }
        if objective.ratio != "none":
            sums |= {
                "ppo_ratio_clamped": clipped.sum(),
                "clip_fraction": (ratio != clipped).float().sum(),
            }
        if objective.kl_in_loss:
            sums["kl_loss"] = kl.sum()
        if not self.recomputes:
            sums |= {
                "mismatch": log_ratio.abs().sum(),
                "weight": log_ratio.exp().sum(),
                "weight_squared": (2 * log_ratio).exp().sum(),
            }
        return LossTerms((losses * batch.token_weights[rows]).sum() - entropy, mask.sum(), sums)

    def _logprobs(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """The responses' log-probabilities under the policy, and the policy's entropies: float [B, S-1] each.

        Without a second pass over the responses, both come from generation.
        """
        if self.recomputes:
            return self.policy.logprobs(rollouts)
        entropies = -rollouts.sampler_logprobs  # the mean of −log π estimates the entropy
        return rollouts.sampler_logprobs, entropies

    # -- rewards and masks, for PPO and GRPO ----------------------------------------------------------------------

    def shaped(self, rollouts: Rollouts, rewards: Tensor) -> Tensor:
        """The rewards after clipping and penalties: float [B]; NaN stays NaN."""
        shaping = shaping_settings(self.config)
        return policy_gradient.shaped_rewards(
            rewards, rollouts.last_turn_lengths, rollouts.finished, **shaping
        )

    def compared(
        self,
        rollouts: Rollouts,
        rewards: Tensor,
        baseline: str,
        scale: str,
        grpo_formula: Callable[[Tensor, Tensor], Tensor] = policy_gradient.grpo_advantages,
    ) -> Tensor:
        """Compute the advantages of this rank's responses: float32 [B]. The baseline comes from the responses of all ranks.

        The advantage is 0 for a response without a reward. rewards: float [B]. For the other arguments see `group_advantages`.
        """
        parts = parallel.gather_over_dp((rollouts.group, rewards))
        group, of_all_ranks = (torch.cat(parts_of) for parts_of in zip(*parts))
        advantages = policy_gradient.group_advantages(of_all_ranks, group, baseline, scale, grpo_formula)
        return advantages.split([len(part) for part, _ in parts])[parallel.dp_rank()]

    def loss_mask(self, rollouts: Rollouts, rewards: Tensor) -> Tensor:
        """The tokens in the loss: bool [B, S-1]."""
        learnt = rewards.isfinite()
        if self.loop_settings.mask_truncated_responses:
            learnt = learnt & rollouts.finished
        return self.functions.loss_mask(rollouts.response_mask, learnt)

    def sampler_weights(self, rollouts: Rollouts, logprobs: Tensor) -> Tensor:
        """The importance weights of the sampler correction: float [B, S-1], 1 outside the responses."""
        weights = policy_gradient.importance_weights(
            logprobs,
            rollouts.sampler_logprobs,
            self.rollout_settings.sampler_correction,
            self.rollout_settings.sampler_correction_cap,
        )
        return torch.where(rollouts.response_mask, weights, 1.0)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _share(self, tasks: list[Task], first: int) -> list[tuple[int, int, Task]]:
        """This rank's share of each global batch of responses. An optimizer step therefore sees the same samples in any
        layout."""
        size, group = self.config.model.global_batch_size, self.group_size
        numbered = [
            ((first + i) * group + k, first + i, task) for i, task in enumerate(tasks) for k in range(group)
        ]
        batches = [numbered[i : i + size] for i in range(0, len(numbered), size)]
        return [
            item for batch in batches for item in share_of_rank(batch, parallel.dp_rank(), parallel.dp_size())
        ]

    def _adapt_kl_coef(self, kl: float) -> None:
        if self.loop_settings.target_kl is not None:
            self.kl_coef = policy_gradient.adapted_coefficient(
                self.kl_coef, kl, self.loop_settings.target_kl, KL_HORIZON
            )

    def _check_kl(self, kl: float, step: int) -> None:
        bound = self.loop_settings.max_init_policy_kl
        if bound is not None and kl > bound:
            difference = "|log π − log π_ref|" if self.loop_settings.use_absolute_kl else "log π − log π_ref"
            name = group_of(self.config)
            penalty = (
                f" or a higher trainer.{name}.initial_policy_kl_penalty"
                if self.objective.kl != "none"
                else ""
            )
            raise KLBoundError(
                f"at step {step} init_policy_kl, the mean of {difference}, is {kl:.3f} nats, beyond "
                f"trainer.{name}.max_init_policy_kl={bound}. A resumed run draws the same responses: raise the bound, or "
                f"begin anew or branch from an earlier step with a lower model.optim.lr{penalty}"
            )

    def _bookkeeping(self, step: int) -> dict[str, float]:
        figures = {"train_rollouts/consumed_samples": step * self.prompts_per_step * self.group_size}
        if self.tasks.size is not None:
            reserved = step * self.draws_per_step * self.prompts_per_step
            figures["train_rollouts/epoch"] = reserved / self.tasks.size
        return figures

    def _report(
        self,
        split: str,
        step: int,
        collected: Collected,
        rewards: Tensor,
        experience: Experience | None = None,
    ) -> None:
        kl, advantages = None, None
        if experience is not None:
            kl, advantages = experience.kl, experience.advantages * experience.loss_mask
        records = rollout_records(
            split,
            step,
            self.policy.tokenizer,
            collected.rollouts,
            rewards,
            kl,
            advantages,
            collected.outcomes,
        )
        if self.run is not None:
            self.run.log_rollouts(records)
        note_failed_outcomes(collected.outcomes, self.run)


def _mismatch_of(figures: list[dict[str, float]]) -> dict[str, float]:
    """The difference between the log-probabilities of generation and of the first update. Removes its terms from `figures`."""
    first = dict(figures[0])
    for update in figures:
        for name in ("mismatch", "weight", "weight_squared"):
            del update[name]
    size = first["weight"] ** 2 / first["weight_squared"]
    return {"sampler_mismatch": first["mismatch"], "sampler_effective_sample_size": size}


def _rows_or_an_empty_row(batch: Experience, rows: Tensor) -> Experience:
    """Return the given rows. Without rows, return a row with empty masks, because every rank takes part in every update."""
    if len(rows):
        return batch.rows(rows)
    row = batch.rows([0])
    empty = torch.zeros_like(row.loss_mask)
    return replace(row, loss_mask=empty, response_mask=empty)


def means(updates: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over the updates that have the metric."""
    names = dict.fromkeys(name for figures in updates for name in figures)
    having = {name: [figures[name] for figures in updates if name in figures] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}
