"""Waits for the end of runs, in a cell or in batch, and reports how the runs ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator

from aligner_lib.run_folder.set_aside import way_back

POLL_SECONDS = 0.25
JOB_SECONDS = 3.0
FULL_DISK_BYTES = 100 << 20  # a disk with less free space counts as full
SUBMITTED_AGAIN = "The job was submitted again: what is shown is of the attempt before."
FINAL_JOB_STATES = ("finished", "failed", "cancelled")  # cluster.State


class RunFailed(RuntimeError):
    """A run ended with an error. The message comes from the run."""


class RunLost(RunFailed):
    """A run's process ended without a final status: it was killed, ran out of memory, or the machine failed. Or a run on another
    machine shows no sign of life."""


def until_over(runs: list, job, timeout: float | None) -> Iterator[float]:
    """Yield seconds to sleep until every run is over. job: the handle of the runs' job, or None.

    Raises TimeoutError after `timeout` seconds.
    """
    start, resubmission = time.monotonic(), Resubmission(job)
    while waiting := [run for run in runs if not _is_over(run, job) or resubmission.awaits(run)]:
        if timeout is not None and time.monotonic() - start > timeout:
            of_job = f"; its job is {_state(job) or 'unknown'}" if job is not None else ""
            names = ", ".join(f"{run.name} ({run.status}{of_job})" for run in waiting)
            raise TimeoutError(
                f"after {timeout:g} s not over: {names}; wait again, or stop with request_stop()"
            )
        yield POLL_SECONDS


async def until_over_async(runs: list, job, timeout: float | None) -> AsyncIterator[float]:
    """Like `until_over`, but polls in a thread, because an unresponsive scheduler can block for seconds."""
    pauses = until_over(runs, job, timeout)
    while (pause := await asyncio.to_thread(next, pauses, None)) is not None:
        yield pause


def verdict(run, job=None) -> str:
    """A sentence about the end of a run. Raises RunFailed or RunLost if the run did not finish or stop normally."""
    status, info = run.status, run.info
    if status == "deleted":
        raise RunLost(f"{run.name} is gone: its folder {run.path} was deleted during the watch.")
    step = (info.get("heartbeat") or {}).get("step")
    message = info.get("message") or "it left no message"
    if status == "failed":
        raise RunFailed(f"{run.name} failed at step {step}: {message}{_advice(run)}{_end_of_log(job)}")
    if status != "lost" and run.is_over and _state(job) == "failed":
        known = (
            f"the run {status} after step {step}: {message}"
            if _is_of(run, job)
            else f"the run folder is unchanged since an earlier job, {status} after step {step}"
        )
        raise RunFailed(f"{run.name}: its job failed, and {known}.{_end_of_log(job)}")
    if silence := silence_of(run):
        raise RunLost(f"{run.name} is lost: {silence}.{_advice(run)} {_where_to_look(run, job)}")
    if status == "lost":
        process = info.get("pid", "(recorded)")  # a recording does not keep the number
        raise RunLost(
            f"{run.name} is lost: its process {process} is gone and left no message after step {step}. "
            f"{full_disk_of(run) or 'Most often the process was killed or ran out of memory.'}{_advice(run)} "
            f"{_where_to_look(run, job)}"
        )
    if not run.is_over:
        raise RunLost(
            f"{run.name}: its job is {_state(job)} but the run is {status}. {_where_to_look(run, job)}"
        )
    if status == "stopped":
        checkpoint = run.latest_checkpoint()
        return f"{run.name} was stopped after step {step}{f'; its checkpoint is {checkpoint}' if checkpoint else ''}."
    return f"{run.name} finished after step {step}."


def silence_of(run) -> str:
    """What is known of a lost run on another machine, whose process nobody here can look for; "" for other runs."""
    info = run.info
    if run.status != "lost" or info.get("host") in (None, os.uname().nodename):  # a recording has no host
        return ""
    heartbeat = info["heartbeat"]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(heartbeat["time"]))
    return f"no sign of life since {since}, after step {heartbeat['step']}; its process can't be checked from here"


def full_disk_of(run) -> str:
    """The cause of a run's loss, if its disk is full, and the cure; "" for other runs, and for runs on another machine.

    A process that can't write its last message to the full disk ends without a message.
    """
    if run.status != "lost" or run.info.get("host") != os.uname().nodename:
        return ""
    free = shutil.disk_usage(run.path).free
    if free >= FULL_DISK_BYTES:
        return ""
    return f"The run's disk is full ({free / 2**20:.0f} MiB are free): remove files, such as earlier runs."


def _is_over(run, job) -> bool:
    """Whether a run is over, according to the run folder and the job.

    A stopped or lost run continues if its job is queued again. Therefore the job's state decides. For a finished run, the run
    folder decides, unless the folder still shows an earlier job.
    """
    if job is None or run.status == "deleted" or (run.status == "finished" and _is_of(run, job)):
        return run.is_over
    return _state(job) in FINAL_JOB_STATES


class Resubmission:
    """Detects a resubmitted job that has not begun, while the run folder still shows the earlier attempt."""

    def __init__(self, job):
        """job: the handle of the runs' job, or None. Used for run folders without a record of a submission."""
        self.job = job
        self._looks: dict[
            tuple, tuple[float, bool]
        ] = {}  # (run, job) → (time of the last request, whether the job was over)

    def awaits(self, run) -> bool:
        """Whether the resubmitted job has neither written its first heartbeat nor ended."""
        if not run.is_over or run.status == "deleted":
            return False
        # prefer the record in the run folder: the job may have been resubmitted after the handle was created
        job = (run.latest_job() or self.job) if hasattr(run, "latest_job") else None
        if job is None or _is_of(run, job):
            return False
        look = run.path, getattr(job, "id", None)
        looked_at, is_over = self._looks.get(look, (float("-inf"), True))
        if time.monotonic() - looked_at > JOB_SECONDS:  # a request to a scheduler is expensive
            is_over = _state(job) in FINAL_JOB_STATES
            self._looks[look] = time.monotonic(), is_over
        return not is_over


def _is_of(run, job) -> bool:
    """Whether the run has written a heartbeat after the submission of the job."""
    submitted = getattr(getattr(job, "record", None), "submitted", 0.0)
    return (run.info.get("heartbeat") or {}).get("time", 0.0) >= submitted


def _state(job) -> str:
    state = getattr(job, "state", "")
    return str(getattr(state, "value", state)).lower()


def _advice(run) -> str:
    advice = way_back(run)
    return f"\n{advice}" if advice else ""


def _where_to_look(run, job) -> str:
    if log := _end_of_log(job):
        return log.strip()
    return f"Its logs are below {run.path / 'job'}; the same command takes the run up at its last checkpoint."


def _end_of_log(job) -> str:
    """The last lines of the component that failed, with a heading; "" for a handle without logs."""
    failure_lines = getattr(job, "failure_lines", None)
    return f"\nThe end of its log:\n{failure_lines(job.status)}" if failure_lines is not None else ""
