"""A policy on held-out prompts: rewards, lengths and how far it is from its reference. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aligner_lib.algorithms import ppo
from aligner_lib.datasets.load import PromptSample
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import roll_out
from aligner_lib.rollouts.interfaces import RewardSource
from aligner_lib.rollouts.policy import Policy
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.rollout_metrics import mean_std, rollout_metrics, rollout_records


@dataclass
class Evaluation:
    """One validation pass; `run_loop` calls it with no steps to do."""

    policy: Policy
    reward_source: RewardSource
    prompts: list[PromptSample]
    rollout_micro_batch_size: int
    seed: int
    run: RunWriter | None  # on the first rank
    controls = ()

    def change(self, name: str, value: float) -> None:
        raise AssertionError("an evaluation has no controls")

    def step(self, step: int) -> dict[str, float]:
        raise AssertionError("an evaluation has no steps")

    def validate(self, step: int) -> dict[str, float]:
        """Figures under evaluation/. `kl` is the mean of log π − log π_ref over response tokens, in nats a token."""
        mine = list(enumerate(self.prompts))[parallel.dp_rank() :: parallel.dp_size()]
        rollouts, judgements = roll_out(
            self.policy, self.reward_source, mine, step, self.seed, self.rollout_micro_batch_size
        )
        rewards, _ = judgements()
        kl = ppo.kl_penalty(
            self.policy.logprobs(rollouts)[0], self.policy.reference_logprobs(rollouts), absolute=False
        )
        records = rollout_records("evaluation", step, self.policy.tokenizer, rollouts, rewards, kl)
        if self.run is not None:
            self.run.log_rollouts(records)
        figures = rollout_metrics("evaluation", rollouts, rewards)
        figures["evaluation/kl"], figures["evaluation/kl_std"] = mean_std(kl[rollouts.response_mask])
        return figures

    def save(self, folder: Path) -> None:
        raise AssertionError("an evaluation has nothing to save")

    def load(self, folder: Path) -> None:
        raise AssertionError("an evaluation is never resumed")
