"""Failures of environments on prompts and responses: written to the run folder, counted, and left out of training."""

from __future__ import annotations

from collections.abc import Mapping

from aligner_lib.errors import UserError
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import EpisodeOutcome
from aligner_lib.rollouts.environments.pool import EnvironmentFailure
from aligner_lib.rollouts.tasks import Task
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import BoundExceeded

MOST_FAILED_STEPS = 3
"""Consecutive steps without any reward, after which the run ends."""
OF_REWARDS = tuple(
    f"train_rollouts/{name}"
    for name in (
        "rewards_with_kl",
        "rlhf_rewards",
        "returns_last",
        "returns_mean",
        "returns_std",
        "values_mean",
        "values_std",
        "advantages_mean",
        "advantages_std",
        "learnt_advantages_mean",
        "learnt_advantages_std",
    )
)
"""Metrics that are unknown in a step without a reward."""


class RewardsFailedError(BoundExceeded):
    """No response of several consecutive steps has a reward."""


class FailedRewards:
    """Counts consecutive steps in which no response has a reward.

    The count is not part of a checkpoint: a resumed run begins at 0, because the user may have repaired the reward.
    """

    def __init__(self):
        self.steps = 0

    def count(self, metrics: Mapping[str, float | None]) -> dict[str, None]:
        """Count a step with these metrics. If no response has a reward, return None for each metric of rewards."""
        if metrics["train_rollouts/rewards_failed"] < 1:
            self.steps = 0
            return {}
        self.steps += 1
        return {name: None for name in OF_REWARDS if name in metrics}

    def check(self, step: int, outcomes: list[EpisodeOutcome]) -> None:
        """Raise RewardsFailedError after MOST_FAILED_STEPS steps without any reward. All ranks must call this method
        together."""
        failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        reasons = [failure for part in parallel.gather_over_dp(failures[:1]) for failure in part]
        if self.steps < MOST_FAILED_STEPS:
            return
        why = "the reward model's rewards are not finite"
        if reasons:
            first = reasons[0]
            why = (
                f"the first failure, of model.environments.{first.environment} ({first.reason}): {first.text}"
            )
        raise RewardsFailedError(
            f"at step {step} no response has had a reward for {self.steps} steps, so the policy learns nothing: "
            "repair the reward, then start the run again, which continues from its checkpoint; after a change of the reward's file, "
            f"`aligner branch RUN --at {step - 1}` continues instead, or exp_manager.resume_if_exists=False begins anew; {why}"
        )


def given_tasks(
    tasks: list[Task | EnvironmentFailure], run: RunWriter | None
) -> tuple[list[Task], list[EnvironmentFailure]]:
    """Split tasks into prompts and failures to provide a prompt, and write the failures to the run folder.

    run: None on all ranks except the first. Raises UserError if failures leave fewer prompts than ranks.
    """
    failures = [task for task in tasks if isinstance(task, EnvironmentFailure)]
    given = [task for task in tasks if isinstance(task, Task)]
    note_failures(failures, run)
    if len(given) < parallel.dp_size() and failures:
        first = failures[0]
        raise UserError(
            f"only {len(given)} of {len(tasks)} prompts were given, too few to go on. The first failure, of "
            f"model.environments.{first.environment} ({first.reason}): {first.text}"
        )
    return given, failures


def note_failed_outcomes(outcomes: list[EpisodeOutcome], run: RunWriter | None) -> None:
    """Call `note_failures` for the failed outcomes of responses."""
    note_failures([outcome.failure for outcome in outcomes if outcome.failure is not None], run)


def note_failures(failures: list[EnvironmentFailure], run: RunWriter | None) -> None:
    """Write each environment's first failure of each reason to the run folder, with its traceback. Metrics count all failures.

    failures: the failures on this rank. All ranks must call this function together.
    """
    failures = [failure for part in parallel.gather_over_dp(failures) for failure in part]
    for failure in failures if run is not None else []:
        run.note_failure(
            failure.environment,
            failure.reason,
            f"the episode of seed {failure.seed} failed ({failure.reason}): {failure.text}",
        )
