"""A cell that is run again meets the run that it started before: the run is followed, goes on, or is set aside."""

from __future__ import annotations

from collections.abc import Mapping

from aligner_lib.jobs.branch import parents_settings
from aligner_lib.jobs.command_line import command
from aligner_lib.run_folder.branch import set_aside_branch
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.tutorial.workspace.earlier_runs import (
    RequestedRun,
    changes_of_unfinished,
    differences_from_job,
    reason_to_begin_anew,
)
from cluster.states import State
from cluster.submission import RunBusy, refuse_if_busy


def begins_anew(run: RunFolder, requested: RequestedRun, only_prints: bool = False) -> bool:
    """Whether an earlier run does not go on with the requested training. Prints the reason, or the settings that change before the
    end of an unfinished run. Raises RunBusy if the run is still running and the job is not only printed."""
    if reason := reason_to_begin_anew(run, requested):
        if only_prints:
            print(f"{run.name} was {reason}: the printed job would begin anew and set the old files aside")
        else:
            refuse_if_busy(run.path)
            print(f"{run.name} was {reason}: training begins anew, and the old files are set aside")
    elif changes := changes_of_unfinished(run, requested):
        print(
            f"{run.name} goes on from step {step_of(run.latest_checkpoint())} with other settings ({', '.join(changes)}). To train "
            f"all steps with them, remove {run.path} and run the cell again"
        )
    return bool(reason)


def make_way_for_branch(
    child: RunFolder, parent: RunFolder, texts: Mapping[str, str], settings: Mapping[str, object]
) -> None:
    """Set a branch aside if the branch was trained with other functions, or finished with other settings."""
    if (child.info.get("heartbeat") or {}).get("step", 0) <= child.info["parent"]["step"]:
        return  # the branch has no steps of its own
    profile = parent.info.get("profile")
    words = command(parent.kind, child.path, parents_settings(parent) | settings, profile)
    if begins_anew(child, RequestedRun({"main": words}, profile, texts, is_branch=True)):
        set_aside_branch(child)


def running_job(
    run: RunFolder, busy: RunBusy, kind: str, requested: RequestedRun, shared: Mapping[str, object]
):
    """The handle of a run's running job, with a message.

    kind: of the run. shared: a branch's settings of its parent. Raises RunBusy for a job with other settings or functions than requested, whose
    figures would stand under the requested settings, and for a job whose state is unknown.
    """
    from cluster import Job

    if busy.state == State.UNKNOWN:
        raise busy
    job = Job.attach(run.path)
    if differ := differences_from_job(run, job.record.components, kind, requested, shared):
        raise RunBusy(
            f"{run.name} is still running, and this cell asks for another run ({', '.join(differ)}): wait for its end, or stop it "
            f"with `aligner stop {run.path}`, and run the cell again"
        ) from None
    print(
        f"{run.name} is still running, and this cell follows it. To train with other settings, stop the run first"
    )
    return job


def running_sweep(run: RunFolder, busy: RunBusy):
    """The handle of a running sweep, with a message. Raises the error of a job that is not a sweep's, or of unknown state."""
    from cluster import JobNotFound, Sweep

    if busy.state == State.UNKNOWN:
        raise busy
    try:
        sweep = Sweep.attach(run.path)
    except JobNotFound:
        raise busy from None
    print(
        f"{run.name} is still running, and this cell follows it. To sweep with other settings, cancel the sweep first"
    )
    return sweep
