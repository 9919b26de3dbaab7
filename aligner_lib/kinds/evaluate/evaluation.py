"""Evaluates a policy on held-out prompts: rewards, lengths and the KL to a reference. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

from aligner_lib.algorithms.batching import share_of_rank
from aligner_lib.kinds.policy_gradient.environment_failures import given_tasks, note_failed_outcomes
from aligner_lib.kinds.policy_gradient.rollout_metrics import (
    copied_metric,
    environment_metrics,
    good_metric,
    rollout_metrics,
    rollout_records,
)
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import RolloutCollector
from aligner_lib.rollouts.tasks import TaskSource
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.statistics import mean_std


@dataclass
class Evaluation:
    """A pass over the prompts of data files or environments."""

    collector: RolloutCollector
    tasks: TaskSource
    num_prompts: int | None
    """None: all."""
    generations_per_prompt: int
    """The number of responses to each prompt. Each response has its own random numbers."""
    rollout_micro_batch_size: int
    greedy: bool
    run: RunWriter | None
    """None on all ranks except the first."""

    def figures(self) -> dict[str, float | None]:
        """Return means over the responses of all ranks, under evaluation/.

        `kl` is the mean of log π − log π_ref over response tokens, in nats per token.
        """
        policy = self.collector.policy
        prompts, failures = given_tasks(self.tasks.validation(self.num_prompts), self.run)
        # The number of a prompt's first response does not depend on generations_per_prompt: more responses leave the first
        # unchanged.
        numbered = [
            (generation * len(prompts) + number, number, task)
            for number, task in enumerate(prompts)
            for generation in range(self.generations_per_prompt)
        ]
        own_tasks = share_of_rank(numbered, parallel.dp_rank(), parallel.dp_size())
        environments = self.tasks.environments.get("validation")
        collected = self.collector(
            own_tasks, 0, self.rollout_micro_batch_size, environments, greedy=self.greedy
        )
        rollouts, rewards = collected.rollouts, collected.wait_for_judgements().rewards
        kl = policy.logprobs(rollouts)[0] - policy.reference_logprobs(rollouts)
        records = rollout_records(
            "evaluation", 0, policy.tokenizer, rollouts, rewards, kl, outcomes=collected.outcomes
        )
        if self.run is not None:
            self.run.log_rollouts(records)
        note_failed_outcomes(collected.outcomes, self.run)
        not_given = len(failures) * self.generations_per_prompt
        figures = rollout_metrics("evaluation", rollouts, rewards, not_given)
        figures |= copied_metric("evaluation", policy.tokenizer, rollouts)
        figures |= good_metric("evaluation", policy.tokenizer, rollouts)
        figures |= environment_metrics("evaluation", collected, rewards, failures)
        figures["evaluation/kl"], figures["evaluation/kl_std"] = mean_std(kl[rollouts.response_mask])
        return figures
