"""The policy answers prompts, and others judge what is already there. PPO and the evaluation both do this."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.datasets.batches import concat_restore_order, concat_rows
from aligner_lib.datasets.load import PromptSample
from aligner_lib.rollouts.interfaces import RewardSource, ValueModel
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.records import Rollouts
from aligner_lib.rollouts.seeds import response_seed
from aligner_lib.rollouts.timers import Timers


def roll_out(
    policy: Policy,
    reward_source: RewardSource,
    prompts: list[tuple[int, PromptSample]],
    step: int,
    seed: int,
    micro_batch_size: int,
    *,
    value_model: ValueModel | None = None,
    timers: Timers | None = None,
) -> tuple[Rollouts, Callable[[], tuple[Tensor, Tensor | None]]]:
    """A response to each of this rank's prompts, in their order, and a call that waits for rewards and values.

    prompts: each with its number among all ranks' prompts of this step. A response's seed is its place in the run, so
    no layout changes what is drawn. Values are asked for while the policy writes the next micro batch. Rewards are asked
    for when it has written all: a reward model that shares its module with the critic has it once a step, while the
    policy computes its log-probabilities.
    """
    timers = timers or Timers()
    groups = length_grouped([len(prompt.tokens) for _, prompt in prompts], micro_batch_size)
    batches, valuing = [], []
    for group in groups:
        numbers = [prompts[i][0] for i in group]
        seeds = [response_seed(seed, step, number) for number in numbers]
        with timers("generate"):
            batches.append(policy.rollout([prompts[i][1].tokens for i in group], seeds, numbers))
        if value_model is not None:
            valuing.append(value_model.values(batches[-1]))
    scoring = [reward_source.score(batch) for batch in batches]

    def judgements() -> tuple[Tensor, Tensor | None]:
        values = None if value_model is None else concat_rows(value_model.collect(valuing), groups)
        return concat_rows(reward_source.collect(scoring), groups), values

    return concat_restore_order(batches, groups, fill=policy.tokenizer.pad_id), judgements
