"""Wait for runs to end, in a cell or in batch, and say how they ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

POLL_SECONDS = 0.25
FINAL_JOB_STATES = ("finished", "failed", "cancelled")  # cluster.State


class RunFailed(RuntimeError):
    """A run ended with an error; the message is the run's own."""


class RunLost(RunFailed):
    """A run's process is gone without a word: killed, out of memory, or its machine went down."""


def until_over(runs: list, job, timeout: float | None) -> Iterator[float]:
    """Yield how long to sleep until every run is over. job: the handle of the job that does them, or None.

    Raises TimeoutError after `timeout` seconds.
    """
    start = time.monotonic()
    while not all(_is_over(run, job) for run in runs):
        if timeout is not None and time.monotonic() - start > timeout:
            waiting = ", ".join(f"{run.name} ({run.status})" for run in runs if not run.is_over)
            raise TimeoutError(
                f"after {timeout:g} s not over: {waiting}; wait again, or stop with request_stop()"
            )
        yield POLL_SECONDS


def verdict(run, job=None) -> str:
    """How a run ended, in a sentence. Raises RunFailed or RunLost when it did not end well."""
    status, info = run.status, run.info
    step = (info.get("heartbeat") or {}).get("step")
    if status == "failed":
        raise RunFailed(f"{run.name} failed at step {step}: {info.get('message') or 'it left no message'}")
    if status == "lost":
        raise RunLost(
            f"{run.name} is lost: its process {info.get('pid')} is gone and left no message after step {step}. "
            f"Most often it was killed or ran out of memory. {_where_to_look(run, job)}"
        )
    if not run.is_over:
        raise RunLost(
            f"{run.name}: its job is {_state(job)} but the run is {status}. {_where_to_look(run, job)}"
        )
    if status == "stopped":
        checkpoint = run.latest_checkpoint()
        return f"{run.name} was stopped after step {step}{f'; its checkpoint is {checkpoint}' if checkpoint else ''}."
    return f"{run.name} finished after step {step}."


def _is_over(run, job) -> bool:
    """A run that was stopped, or lost its process, goes on where its job is queued again; so the job is asked."""
    if job is None or run.status == "finished":
        return run.is_over
    return _state(job) in FINAL_JOB_STATES


def _state(job) -> str:
    state = getattr(job, "state", "")
    return str(getattr(state, "value", state)).lower()


def _where_to_look(run, job) -> str:
    tail = getattr(job, "tail", None)
    if tail is not None:
        return f"The end of its log:\n{tail()}"
    return f"Its logs are below {run.path / 'job'}; the same command takes the run up at its last checkpoint."
