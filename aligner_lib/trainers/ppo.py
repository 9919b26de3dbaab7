"""PPO: the policy answers prompts, is scored, and moves towards what scored well without leaving its reference.

    B responses of this rank, S longest prompt + response

Algorithm: Ouyang et al. 2022 (arXiv:2203.02155), in NeMo-Aligner's form.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor

from aligner_lib.algorithms import ppo
from aligner_lib.algorithms.batching import global_batch, length_grouped, share_of_rank
from aligner_lib.config.kinds.ppo import val_rollout_micro_batch_size
from aligner_lib.datasets.load import PromptSample
from aligner_lib.errors import UserError
from aligner_lib.megatron import parallel
from aligner_lib.megatron.cpu import DEVICE
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.rollouts.collect import roll_out
from aligner_lib.rollouts.interfaces import RewardSource, ValueModel
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.records import Experience, Rollouts
from aligner_lib.rollouts.timers import Timers
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.lr import LRSchedule
from aligner_lib.trainers.rollout_metrics import experience_metrics, rollout_metrics, rollout_records


class KLBoundError(UserError):
    """The policy has gone further from its reference than the configured bound."""


@dataclass
class PPOTrainer:
    """One step is one rollout and the optimiser steps that learn from it."""

    policy: Policy
    reward_source: RewardSource
    critic: ValueModel
    train_prompts: list[PromptSample]
    val_prompts: list[PromptSample]
    lr_schedule: LRSchedule
    critic_lr_schedule: LRSchedule
    config: DictConfig  # a config.schema.PPOConfig
    run: RunWriter | None  # on the first rank
    controls = ("lr", "kl_coef")

    def __post_init__(self):
        self.kl_coef = self.config.trainer.ppo.initial_policy_kl_penalty

    def change(self, name: str, value: float) -> None:
        """The actor's learning rate, or the KL coefficient, from the next step on."""
        if name == "lr":
            self.lr_schedule.override = value
        else:
            assert name == "kl_coef", f"PPO has no control {name!r}"
            self.kl_coef = value

    def step(self, step: int) -> dict[str, float]:
        """One PPO step: rollout, advantages, updates. Raises KLBoundError; NonFiniteError for a loss that is none."""
        model, rollout, timers = self.config.model, self.config.model.ppo, Timers()

        # 1  Rollout: the policy answers this step's prompts.
        picked = global_batch(len(self.train_prompts), step - 1, rollout.num_rollout_samples, model.seed)
        prompts = [self.train_prompts[i] for i in picked]
        with timers("rollout_time"):
            rollouts, judgements = roll_out(
                self.policy,
                self.reward_source,
                self._share(prompts),
                step,
                model.seed,
                rollout.rollout_micro_batch_size,
                value_model=self.critic,
                timers=timers,
            )

            # 2  Log-probabilities of the responses under the policy and under its reference.
            with timers("logprobs"):
                logprobs, entropies = self.policy.logprobs(rollouts)
            with timers("init_logprobs"):
                reference_logprobs = self.policy.reference_logprobs(rollouts)
            with timers("critic_wait"):
                rewards, values = judgements()

        # 3  Rewards less the KL penalty become advantages and returns.
        experience, kl, token_rewards = self._experience(
            rollouts, rewards, values, logprobs, reference_logprobs
        )
        metrics = rollout_metrics("train_rollouts", experience, rewards)
        metrics |= experience_metrics(experience, kl, token_rewards, entropies)
        self._report("train", step, experience, rewards, kl, experience.advantages)
        self._check_kl(metrics["train_rollouts/init_policy_kl"], step)

        # 4  Actor and critic learn from it, one global batch after the other.
        with timers("train_time"):
            metrics |= self._train(step, experience, timers)
        metrics["train_rollouts/kl_coef"] = self.kl_coef
        metrics["train_rollouts/consumed_samples"] = step * rollout.num_rollout_samples
        metrics["train_rollouts/epoch"] = step * rollout.num_rollout_samples / len(self.train_prompts)
        return metrics | timers.seconds

    def validate(self, step: int) -> dict[str, float]:
        """Rewards on held-out prompts, sampled with the same random numbers at every validation."""
        seed, micro_batch_size = self.config.model.seed, val_rollout_micro_batch_size(self.config)
        prompts = self._share(self.val_prompts)
        rollouts, judgements = roll_out(self.policy, self.reward_source, prompts, 0, seed, micro_batch_size)
        rewards, _ = judgements()
        self._report("validation", step, rollouts, rewards)
        return rollout_metrics("val_rollouts", rollouts, rewards)

    def save(self, folder: Path) -> None:
        """Write this rank's share of actor and critic."""
        self.critic.save(folder / "critic")  # first: where it is away, there is nothing to write
        self.policy.engine.save(folder)
        if parallel.is_first_rank():
            self.policy.tokenizer.save(folder)

    def load(self, folder: Path | None) -> None:
        """Go on from what `save` wrote; None: from before the first step."""
        self.critic.load(folder and folder / "critic")  # first: it may have no checkpoint of this step
        self.policy.engine.go_on_from(folder)

    # -- the stages -----------------------------------------------------------------------------------------------

    def _share(self, prompts: list[PromptSample]) -> list[tuple[int, PromptSample]]:
        """This rank's prompts with their numbers, global batch by global batch: each optimiser step sees the same samples
        in any layout."""
        size, numbered = self.config.model.global_batch_size, list(enumerate(prompts))
        batches = [numbered[i : i + size] for i in range(0, len(numbered), size)]
        return [
            item for batch in batches for item in share_of_rank(batch, parallel.dp_rank(), parallel.dp_size())
        ]

    def _experience(
        self,
        rollouts: Rollouts,
        rewards: Tensor,
        values: Tensor,
        logprobs: Tensor,
        reference_logprobs: Tensor,
    ) -> tuple[Experience, Tensor, Tensor]:
        """What to learn from, the KL of each token and the reward of each token."""
        loop, mask = self.config.trainer.ppo, rollouts.response_mask
        kl = ppo.kl_penalty(logprobs, reference_logprobs, loop.use_absolute_kl) * mask
        token_rewards = ppo.rewards_with_kl(rewards, kl, mask, self.kl_coef)
        advantages, returns = ppo.advantages_and_returns(
            values, token_rewards, mask, loop.discount_factor, loop.gae_lambda
        )
        if loop.normalize_advantages:
            advantages = ppo.normalize(advantages, mask, parallel.sum_over_dp)
        experience = Experience(
            **vars(rollouts),
            logprobs=logprobs,
            values=values,
            advantages=advantages,
            returns=returns,
        )
        return experience, kl, token_rewards

    def _train(self, step: int, experience: Experience, timers: Timers) -> dict[str, float]:
        updates = self.config.model.ppo.num_rollout_samples // self.config.model.global_batch_size
        local_size = experience.size // updates
        warming_up = step <= self.config.trainer.ppo.critic_warmup_steps
        done: list[dict[str, float]] = []
        learning: list[Future[dict[str, float]]] = []
        for update in range(updates):
            number = (step - 1) * updates + update + 1
            batch = experience.rows(torch.arange(update * local_size, (update + 1) * local_size))
            learning.append(self.critic.train(batch, self.critic_lr_schedule(number)))
            figures = {} if warming_up else self._train_actor(batch, self.lr_schedule(number))
            done.append(figures | {"critic/lr": self.critic_lr_schedule(number)})
        with timers("critic_train_wait"):
            learnt = [critic.result() for critic in learning]
        for figures, critic in zip(done, learnt):
            figures |= {"critic/loss": critic["loss"], "critic/grad_norm": critic["grad_norm"]}
        means = {name: sum(figures[name] for figures in done) / updates for name in done[0]}
        if not warming_up:
            means["train_optim/first_ppo_ratio"] = done[0]["train_optim/ppo_ratio"]
            means["train_optim/optim_step"] = step * updates
        return means

    def _train_actor(self, batch: Experience, lr: float) -> dict[str, float]:
        """One optimiser step of the actor, on the finished responses: the loss takes no others (see _actor_loss)."""
        learnable = (
            batch.rows(torch.nonzero(batch.finished).flatten()) if batch.finished.any() else batch.rows([0])
        )
        groups = length_grouped(learnable.lengths.tolist(), self.config.model.micro_batch_size)
        micro_batches = [learnable.rows(group).to(DEVICE) for group in groups]
        terms = self.policy.engine.train_step(micro_batches, self._actor_loss, lr)
        return {f"train_optim/{name}": value for name, value in terms.items()} | {"train_optim/lr": lr}

    def _actor_loss(self, model, batch: Experience, hidden: Tensor) -> LossTerms:
        """The clipped loss over finished responses; one that was cut off says nothing about when to stop."""
        settings = self.config.model.ppo
        mask = batch.response_mask & batch.finished[:, None]
        logprobs, entropies = selected_logprobs(
            model,
            batch.tokens,
            hidden,
            mask,
            self.policy.sampling.temperature,
            with_entropy=settings.entropy_bonus != 0,
        )
        losses, ratio, clipped = ppo.actor_loss(
            logprobs, batch.logprobs[mask], batch.advantages[mask], settings.ratio_eps
        )
        bonus = settings.entropy_bonus * entropies.sum() if entropies is not None else losses.new_zeros(())
        sums = {
            "ppo_ratio": ratio.sum(),
            "ppo_ratio_clamped": clipped.sum(),
            "clip_fraction": (ratio != clipped).float().sum(),
            "scaled_entropy": bonus,
        }
        return LossTerms(losses.sum() - bonus, mask.sum(), sums)

    # -- watching -------------------------------------------------------------------------------------------------

    def _check_kl(self, kl: float, step: int) -> None:
        bound = self.config.trainer.ppo.max_init_policy_kl
        if bound is not None and kl > bound:
            raise KLBoundError(
                f"at step {step} the KL to the reference is {kl:.3f} nats a token, beyond trainer.ppo.max_init_policy_kl="
                f"{bound}: raise trainer.ppo.initial_policy_kl_penalty or lower model.optim.lr"
            )

    def _report(
        self, split: str, step: int, rollouts: Rollouts, rewards: Tensor, kl=None, advantages=None
    ) -> None:
        records = rollout_records(split, step, self.policy.tokenizer, rollouts, rewards, kl, advantages)
        if self.run is not None:
            self.run.log_rollouts(records)
