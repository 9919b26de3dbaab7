"""A policy on held-out prompts: rewards, lengths and how far it is from its reference. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

from aligner_lib.algorithms.batching import share_of_rank
from aligner_lib.datasets.samples import PromptSample
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import Rollout
from aligner_lib.rollouts.tasks import Task
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.rollout_metrics import mean_std, rollout_metrics, rollout_records


@dataclass
class Evaluation:
    """One pass over the prompts."""

    roll_out: Rollout
    prompts: list[PromptSample]
    rollout_micro_batch_size: int
    greedy: bool
    run: RunWriter | None  # on the first rank

    def figures(self) -> dict[str, float]:
        """Means over all ranks' responses, under evaluation/. `kl` is the mean of log π − log π_ref over response tokens, in nats a token."""
        policy = self.roll_out.policy
        tasks = [(number, number, Task(**vars(prompt))) for number, prompt in enumerate(self.prompts)]
        mine = share_of_rank(tasks, parallel.dp_rank(), parallel.dp_size())
        collected = self.roll_out(mine, 0, self.rollout_micro_batch_size, greedy=self.greedy)
        rollouts, (rewards, _) = collected.rollouts, collected.judged()
        kl = policy.logprobs(rollouts)[0] - policy.reference_logprobs(rollouts)
        records = rollout_records("evaluation", 0, policy.tokenizer, rollouts, rewards, kl)
        if self.run is not None:
            self.run.log_rollouts(records)
        figures = rollout_metrics("evaluation", rollouts, rewards)
        figures["evaluation/kl"], figures["evaluation/kl_std"] = mean_std(kl[rollouts.response_mask])
        return figures
