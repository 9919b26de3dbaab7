"""Prompts and responses that an environment failed at: noted once in the run folder, counted, and left out."""

from __future__ import annotations

from aligner_lib.errors import UserError
from aligner_lib.megatron import parallel
from aligner_lib.rollouts.collect import Outcome
from aligner_lib.rollouts.environments.pool import Failure
from aligner_lib.rollouts.tasks import Task
from aligner_lib.run_folder.writer import RunWriter


def given_tasks(tasks: list[Task | Failure], run: RunWriter | None) -> tuple[list[Task], list[Failure]]:
    """The prompts, and those that an environment did not give, which are noted down.

    run: None on all ranks but the first. Raises UserError for too few prompts to go on.
    """
    failures = [task for task in tasks if isinstance(task, Failure)]
    given = [task for task in tasks if isinstance(task, Task)]
    note_failures(failures, run)
    if len(given) < parallel.dp_size() and failures:
        first = failures[0]
        raise UserError(
            f"only {len(given)} of {len(tasks)} prompts were given, too few to go on. The first that failed, of "
            f"model.environments.{first.environment} ({first.reason}): {first.text}"
        )
    return given, failures


def note_failed_outcomes(outcomes: list[Outcome], run: RunWriter | None) -> None:
    """As `note_failures`, of responses."""
    note_failures([one.failure for one in outcomes if one.failure is not None], run)


def note_failures(failures: list[Failure], run: RunWriter | None) -> None:
    """The first failure of each environment, with its traceback, goes to the run folder; all are counted in metrics.

    failures: this rank's; all ranks call it together.
    """
    failures = [one for part in parallel.gather_over_dp(failures) for one in part]
    for one in failures if run is not None else []:
        run.note_failure(one.environment, f"the episode of seed {one.seed} failed ({one.reason}): {one.text}")
