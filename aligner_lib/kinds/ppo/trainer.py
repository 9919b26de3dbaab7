"""PPO: a policy gradient whose baseline is the critic's value of each token.

    B responses of this rank, S longest prompt + response

Algorithm: Ouyang et al. 2022 (arXiv:2203.02155), in NeMo-Aligner's form.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from aligner_lib.algorithms import ppo
from aligner_lib.config.functions import library_functions
from aligner_lib.kinds.policy_gradient.rollout_metrics import critic_metrics
from aligner_lib.kinds.policy_gradient.trainer import PolicyGradientTrainer, means
from aligner_lib.kinds.ppo.settings import critic_epochs
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import NonFiniteError
from aligner_lib.rollouts.collect import Judgements
from aligner_lib.rollouts.interfaces import ValueModel
from aligner_lib.rollouts.records import ActorCriticExperience, Rollouts
from aligner_lib.rollouts.timers import Timers
from aligner_lib.trainers.lr import LRSchedule


@dataclass
class PPOTrainer(PolicyGradientTrainer):
    """See PolicyGradientTrainer. The critic computes values while the rewards are computed, and trains alongside the actor."""

    critic: ValueModel = field(kw_only=True)
    critic_lr_schedule: LRSchedule = field(kw_only=True)
    functions: SimpleNamespace = field(default_factory=partial(library_functions, "ppo"), kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        self.group_size = self.rollout_settings.num_generations_per_prompt

    @property
    def prompts_per_step(self) -> int:
        return self.rollout_settings.num_rollout_samples // self.group_size

    def experience(
        self,
        rollouts: Rollouts,
        judgements: Judgements,
        logprobs: Tensor,
        reference_logprobs: Tensor,
    ) -> tuple[ActorCriticExperience, dict[str, float]]:
        """Subtract the KL penalty from the rewards, and compute advantages over the critic's values, and returns."""
        loop, mask, rewards = self.loop_settings, rollouts.response_mask, judgements.rewards
        has_reward = rewards.isfinite()
        kl = (logprobs - reference_logprobs) * mask
        shaped = self.shaped(rollouts, rewards)
        baseline = self.prompt_baseline(rollouts, shaped)
        values = judgements.values + baseline[:, None] * mask
        token_rewards = self.functions.token_rewards(
            shaped.nan_to_num(),
            kl.abs() if loop.use_absolute_kl else kl,
            mask,
            self.kl_coef,
        )
        counts = mask & has_reward[:, None]
        learnt_rewards = token_rewards
        if loop.whiten_rewards:
            learnt_rewards = ppo.normalize(token_rewards, counts, parallel.sum_over_dp, keep_mean=True)
        advantages, returns = self.functions.advantages(
            values, learnt_rewards, mask, loop.discount_factor, loop.gae_lambda
        )
        loss_mask = self.loss_mask(rollouts, rewards)
        if loop.normalize_advantages:
            advantages = self.functions.normalize(advantages, loss_mask, parallel.sum_over_dp)
        experience = ActorCriticExperience(
            **vars(rollouts),
            logprobs=logprobs,
            reference_logprobs=reference_logprobs,
            advantages=advantages,
            loss_mask=loss_mask,
            sampler_weights=self.sampler_weights(rollouts, logprobs),
            baseline=baseline,
            values=values,
            returns=returns,
            has_reward=has_reward,
        )
        return experience, critic_metrics(experience, token_rewards)

    def prompt_baseline(self, rollouts: Rollouts, rewards: Tensor) -> Tensor:
        """The value that the critic's output is added to, for each response, in units of rewards: float32 [B]; 0 without a
        baseline.

        rewards: float [B], NaN for a response without a reward. With `leave_one_out`, a response whose group has no other
        reward is compared with the mean reward of the batch.
        """
        baseline = self.loop_settings.prompt_baseline
        if baseline == "none":
            return torch.zeros_like(rewards)
        advantages = self.compared(rollouts, rewards, baseline, scale="none")
        if baseline == "leave_one_out":
            of_rank = rollouts.group[rewards.isfinite()].tolist()
            sizes = Counter(group for part in parallel.gather_over_dp(of_rank) for group in part)
            alone = torch.tensor([sizes[group] == 1 for group in rollouts.group.tolist()])
            over_batch = self.compared(rollouts, rewards, "batch_mean", scale="none")
            advantages = torch.where(alone, over_batch, advantages)
        return rewards.nan_to_num() - advantages

    def learn(self, step: int, experience: ActorCriticExperience, timers: Timers) -> dict[str, float]:
        """Train actor and critic at the same time on the same global batches. The critic may be in another job."""
        epochs, size = critic_epochs(self.config), self.config.model.global_batch_size
        batches = self.global_batches(experience) * epochs
        # failed prompts may cost a step a batch, and the schedule goes on as planned
        done = (step - 1) * (self.rollout_settings.num_rollout_samples // size) * epochs
        rates = [self.critic_lr_schedule(done + i + 1) for i in range(len(batches))]
        learning = [self.critic.train(batch.for_critic(), lr) for batch, lr in zip(batches, rates)]
        warming_up = step <= self.loop_settings.critic_warmup_steps
        try:
            metrics = {} if warming_up else super().learn(step, experience, timers)
        except NonFiniteError:
            # A critic that diverged in another job is the cause, because its values make the actor's loss NaN.
            for pending in learning:
                pending.result()
            raise
        with timers("critic_train_wait"):
            learnt = [terms for pending in learning if (terms := pending.result())]
        figures = means([{name: terms[name] for name in ("loss", "grad_norm")} for terms in learnt])
        figures["lr"] = sum(rates) / len(rates)
        return metrics | {f"critic/{name}": value for name, value in figures.items()}

    def save(self, folder: Path) -> None:
        """Write this rank's share of actor and critic."""
        # The critic is first, because the checkpoint is worthless without the critic's part.
        self.critic.save(folder / "critic")
        super().save(folder)

    def load(self, folder: Path | None) -> None:
        """Restore the state that `save` wrote; None: the state before the first step."""
        # first, because the critic may lack a checkpoint of this step
        self.critic.load(folder and folder / "critic")
        super().load(folder)
