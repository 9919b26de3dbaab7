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
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import LossTerms
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.rollouts.collect import roll_out
from aligner_lib.rollouts.interfaces import RewardSource, ValueModel
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.records import Experience, Rollouts
from aligner_lib.rollouts.timers import Timers
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import BoundExceeded
from aligner_lib.trainers.lr import LRSchedule
from aligner_lib.trainers.rollout_metrics import experience_metrics, rollout_metrics, rollout_records


class KLBoundError(BoundExceeded):
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
    config: DictConfig  # a config.kinds.ppo.PPOConfig
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
        experience, token_rewards = self._experience(rollouts, rewards, values, logprobs, reference_logprobs)
        metrics = rollout_metrics("train_rollouts", experience, rewards)
        metrics |= experience_metrics(
            experience, token_rewards, entropies, self.config.trainer.ppo.use_absolute_kl
        )
        self._report("train", step, experience, rewards, experience.kl, experience.advantages)
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
    ) -> tuple[Experience, Tensor]:
        """What to learn from, and the reward of each token."""
        loop, mask = self.config.trainer.ppo, rollouts.response_mask
        kl = (logprobs - reference_logprobs) * mask
        rewards = rewards - loop.missing_eos_penalty * ~rollouts.finished
        token_rewards = ppo.rewards_with_kl(
            rewards, kl.abs() if loop.use_absolute_kl else kl, mask, self.kl_coef
        )
        advantages, returns = ppo.advantages_and_returns(
            values, token_rewards, mask, loop.discount_factor, loop.gae_lambda
        )
        loss_mask = mask & rollouts.finished[:, None] if loop.mask_truncated_responses else mask
        if loop.normalize_advantages:
            advantages = ppo.normalize(advantages, loss_mask, parallel.sum_over_dp)
        experience = Experience(
            **vars(rollouts),
            logprobs=logprobs,
            reference_logprobs=reference_logprobs,
            values=values,
            advantages=advantages,
            returns=returns,
            loss_mask=loss_mask,
        )
        return experience, token_rewards

    def _train(self, step: int, experience: Experience, timers: Timers) -> dict[str, float]:
        updates = self.config.model.ppo.num_rollout_samples // self.config.model.global_batch_size
        local_size = experience.size // updates
        warming_up = step <= self.config.trainer.ppo.critic_warmup_steps
        actor: list[dict[str, float]] = []
        critic: list[dict[str, float]] = []
        learning: list[Future[dict[str, float]]] = []
        for update in range(updates):
            batch = experience.rows(torch.arange(update * local_size, (update + 1) * local_size))
            critic_lr = self.critic_lr_schedule((step - 1) * updates + update + 1)
            learning.append(self.critic.train(batch.for_critic(), critic_lr))
            critic.append({"critic/lr": critic_lr})
            if not warming_up:
                actor.append(self._train_actor(batch))
        with timers("critic_train_wait"):
            for figures, learnt in zip(critic, learning):
                terms = learnt.result()
                figures |= {"critic/loss": terms["loss"], "critic/grad_norm": terms["grad_norm"]}
        metrics = _means(critic) | _means(actor)
        if any(actor):
            metrics["train_optim/optim_step"] = self.policy.engine.steps
        if actor and actor[0]:
            metrics["train_optim/first_ppo_ratio"] = actor[0]["train_optim/ppo_ratio"]
        return metrics

    def _train_actor(self, batch: Experience) -> dict[str, float]:
        """One optimiser step of the actor and its metrics; neither where no token of the global batch is learnt from."""
        rows = batch.loss_mask.any(dim=1).nonzero().flatten().tolist()
        learnable = batch.rows(rows or [0])  # every rank takes part, if only with a row that says nothing
        groups = length_grouped(learnable.lengths.tolist(), self.config.model.micro_batch_size)
        micro_batches = [learnable.rows(group) for group in groups]
        lr = self.lr_schedule(self.policy.engine.steps + 1)  # the schedule begins with the first update
        terms = self.policy.engine.train_step(micro_batches, self._actor_loss, lr)
        if not terms:
            return {}
        return {f"train_optim/{name}": value for name, value in terms.items()} | {"train_optim/lr": lr}

    def _actor_loss(self, model, batch: Experience, hidden: Tensor) -> LossTerms:
        """PPO's clipped loss, less the entropy bonus, over the tokens of loss_mask."""
        settings, mask = self.config.model.ppo, batch.loss_mask
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
            difference = (
                "|log π − log π_ref|" if self.config.trainer.ppo.use_absolute_kl else "log π − log π_ref"
            )
            raise KLBoundError(
                f"at step {step} init_policy_kl, the mean of {difference}, is {kl:.3f} nats, beyond "
                f"trainer.ppo.max_init_policy_kl={bound}: raise trainer.ppo.initial_policy_kl_penalty or lower "
                "model.optim.lr"
            )

    def _report(
        self, split: str, step: int, rollouts: Rollouts, rewards: Tensor, kl=None, advantages=None
    ) -> None:
        records = rollout_records(split, step, self.policy.tokenizer, rollouts, rewards, kl, advantages)
        if self.run is not None:
            self.run.log_rollouts(records)


def _means(updates: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure over the updates that have it."""
    names = dict.fromkeys(name for figures in updates for name in figures)
    having = {name: [figures[name] for figures in updates if name in figures] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}
