"""The policy answers prompts while the critic side scores what is already there. PPO and the evaluation both do this."""

from __future__ import annotations

from collections.abc import Callable

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.datasets.batches import concat_restore_order
from aligner_lib.datasets.load import PromptSample
from aligner_lib.rollouts.critic import CriticService
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.records import Rollouts, Scores
from aligner_lib.rollouts.seeds import response_seed
from aligner_lib.rollouts.timers import Timers


def roll_out(
    policy: Policy,
    critic: CriticService,
    prompts: list[tuple[int, PromptSample]],
    step: int,
    seed: int,
    micro_batch_size: int,
    timers: Timers | None = None,
) -> tuple[Rollouts, Callable[[], Scores]]:
    """A response to each of this rank's prompts, in their order, and a call that waits for the scores.

    prompts: each with its number among all ranks' prompts of this step. A response's seed is its place in the run, so
    no layout changes what is drawn. The critic begins with a micro batch while the policy writes the next one.
    """
    timers = timers or Timers()
    groups = length_grouped([len(prompt.tokens) for _, prompt in prompts], micro_batch_size)
    batches, scoring = [], []
    for group in groups:
        numbers = [prompts[i][0] for i in group]
        seeds = [response_seed(seed, step, number) for number in numbers]
        with timers("generate"):
            batches.append(policy.rollout([prompts[i][1].tokens for i in group], seeds, numbers))
        scoring.append(critic.infer(batches[-1]))
    rollouts = concat_restore_order(batches, groups, fill=policy.tokenizer.pad_id)
    return rollouts, lambda: concat_restore_order(critic.fetch(scoring), groups)
