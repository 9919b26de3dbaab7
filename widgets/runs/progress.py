"""A run's progress, speed and estimated time to the end, for a heading."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aligner_lib.run_folder.set_aside import way_back
from widgets.runs.series import Series
from widgets.runs.waiting import SUBMITTED_AGAIN

WINDOW = 30  # records that a rate is taken over
RECENT = 5  # steps that tell whether the machine is busy now


def progress(run, series: Series, submitted_again: bool = False, alarm_steps: Iterable[int] = ()) -> dict:
    """A dict for the heading; unknown values are None.

    submitted_again: the folder is as an earlier attempt left it, and the job of the next one has not begun.
    alarm_steps: the steps since which the run's alarms hold.

    Keys: name, kind, status, message, way_back (how to undo a change of settings before a failure or alarm), step,
    max_steps, eta_seconds, tokens_a_second, waits_for_cores (the share of a step's time), heartbeat (unix seconds).
    """
    info = run.info
    heartbeat = info.get("heartbeat") or {}
    step = max(series.steps[-1] if series.steps else 0, heartbeat.get("step") or 0)
    status = run.status
    seconds = seconds_a_step(series)
    eta = None
    if status == "running" and seconds is not None and info.get("max_steps"):
        eta = max(0, info["max_steps"] - step) * seconds
    message = info.get("message") or ""
    if submitted_again:
        status, message = "waiting", SUBMITTED_AGAIN
    elif status == "deleted":
        message = f"The folder {run.path} was deleted: what is drawn is all that is left of the run."
    return {
        "name": info.get("name") or run.name,
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
    """Seconds per step: the median over the last records, which a pause or a clock change does not move."""
    steps = np.array(series.steps[-WINDOW:], dtype=float)
    times = np.array(series.times[-WINDOW:])
    forward = (np.diff(steps) > 0) & (np.diff(times) > 0)
    if not forward.any():
        return None
    return float(np.median(np.diff(times)[forward] / np.diff(steps)[forward]))


def tokens_a_second(series: Series) -> float | None:
    """Tokens per second, generated or trained on, over the last records."""
    tokens = series.tokens()[-WINDOW:]
    seconds = np.diff(np.array(series.times[-WINDOW:]))
    good = seconds > 0
    if not good.any() or not tokens[1:][good].any():
        return None
    return float(tokens[1:][good].sum() / seconds[good].sum())


def waits_for_cores(series: Series) -> float | None:
    """The share of a step's time that it waited for a core: the median over the last steps; None where it is not known."""
    rows, waited = series.last("timers/processor_wait", RECENT)
    of_steps, seconds = series.last("timers/step_time", RECENT)
    if len(rows) == 0 or not np.array_equal(rows, of_steps) or not (seconds > 0).all():
        return None
    return float(np.median(waited / seconds))
