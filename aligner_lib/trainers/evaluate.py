"""A policy on held-out prompts: rewards, lengths and how far it is from its reference. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

from aligner_lib.datasets.load import PromptSample
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import roll_out
from aligner_lib.rollouts.interfaces import RewardSource
from aligner_lib.rollouts.policy import Policy
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.rollout_metrics import mean_std, rollout_metrics, rollout_records


@dataclass
class Evaluation:
    """One pass over the prompts."""

    policy: Policy
    reward_source: RewardSource
    prompts: list[PromptSample]
    rollout_micro_batch_size: int
    seed: int
    run: RunWriter | None  # on the first rank

    def figures(self) -> dict[str, float]:
        """Means over all ranks' responses, under evaluation/. `kl` is the mean of log π − log π_ref over response tokens, in nats a token."""
        mine = list(enumerate(self.prompts))[parallel.dp_rank() :: parallel.dp_size()]
        rollouts, judgements = roll_out(
            self.policy, self.reward_source, mine, 0, self.seed, self.rollout_micro_batch_size
        )
        rewards, _ = judgements()
        kl = self.policy.logprobs(rollouts)[0] - self.policy.reference_logprobs(rollouts)
        records = rollout_records("evaluation", 0, self.policy.tokenizer, rollouts, rewards, kl)
        if self.run is not None:
            self.run.log_rollouts(records)
        figures = rollout_metrics("evaluation", rollouts, rewards)
        figures["evaluation/kl"], figures["evaluation/kl_std"] = mean_std(kl[rollouts.response_mask])
        return figures
