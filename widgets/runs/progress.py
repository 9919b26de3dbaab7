"""A run's progress, speed and estimated remaining time, for the heading of a monitor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aligner_lib.run_folder.set_aside import way_back
from widgets.recordings.replay import LONGEST_STEP
from widgets.runs.series import Series
from widgets.runs.waiting import SUBMITTED_AGAIN, full_disk_of, silence_of

WINDOW = 30  # number of records for a rate
RECENT = 5  # number of steps for the current load of the machine


def progress(
    run, name: str, series: Series, submitted_again: bool = False, alarm_steps: Iterable[int] = ()
) -> dict:
    """A dict for the heading; unknown values are None.

    name: the run's name in the monitor. submitted_again: whether the folder still shows an earlier attempt, because the
    resubmitted job has not begun. alarm_steps: the first steps of the run's active alarms.

    Keys: name, kind, status, message, way_back (how to undo a change of settings before a failure or alarm), step,
    max_steps, eta_seconds, tokens_a_second, waits_for_cores (as a share of a step's time), heartbeat (unix seconds).
    """
    info = run.info
    heartbeat = info.get("heartbeat") or {}
    step = max(series.steps[-1] if series.steps else 0, heartbeat.get("step") or 0)
    status = run.status
    seconds = seconds_a_step(series)
    eta = None
    if status == "running" and seconds is not None and info.get("max_steps"):
        eta = max(0, info["max_steps"] - step) * seconds
    message = info.get("message") or silence_of(run) or full_disk_of(run)
    if submitted_again:
        status, message = "waiting", SUBMITTED_AGAIN
    elif status == "deleted":
        message = f"The folder {run.path} was deleted: what is drawn is all that is left of the run."
    return {
        "name": name,
        "kind": info.get("kind", ""),
        "status": status,
        "message": message,
        "way_back": "" if submitted_again else way_back(run, alarm_steps),
        "step": step,
        "max_steps": info.get("max_steps"),
        "eta_seconds": eta,
        "tokens_a_second": tokens_a_second(series),
        "waits_for_cores": waits_for_cores(series),
        "heartbeat": heartbeat.get("time"),
    }


def seconds_a_step(series: Series) -> float | None:
    """Seconds per step: the median over the last records, which is robust against pauses and changes of the clock."""
    steps = np.array(series.steps[-WINDOW:], dtype=float)
    times = np.array(series.times[-WINDOW:])
    forward = (np.diff(steps) > 0) & (np.diff(times) > 0)
    if not forward.any():
        return None
    return float(np.median(np.diff(times)[forward] / np.diff(steps)[forward]))


def tokens_a_second(series: Series) -> float | None:
    """Tokens per second, generated or trained on, over the last records. Pauses, such as before a resume, are left out."""
    tokens = series.tokens()[-WINDOW:]
    seconds = np.diff(np.array(series.times[-WINDOW:]))
    if not (seconds > 0).any():
        return None
    good = (seconds > 0) & (seconds <= LONGEST_STEP * np.median(seconds[seconds > 0]))
    if not tokens[1:][good].any():
        return None
    return float(tokens[1:][good].sum() / seconds[good].sum())


def waits_for_cores(series: Series) -> float | None:
    """The share of a step's time spent waiting for a CPU core: the median over the last steps; None if unknown."""
    rows, waited = series.last("timers/processor_wait", RECENT)
    of_steps, seconds = series.last("timers/step_time", RECENT)
    if len(rows) == 0 or not np.array_equal(rows, of_steps) or not (seconds > 0).all():
        return None
    return float(np.median(waited / seconds))
