"""The events of a run as marks on the charts: changes of settings, alarms, checkpoints and resumes."""

from __future__ import annotations

import numpy as np

from widgets.runs.control import CONTROLS
from widgets.runs.series import Series

NAMES = {"lr": "learning rate", "kl_coef": "KL coefficient"}
JUMP = 1.2  # a jump changes a setting by more than this factor between two records
CALM = 1.05  # a schedule changes a setting by less than this factor between two records
MOST = 40  # number of latest marks shown for a run


def marks(run, series: Series, alarms: list[tuple[int, str]], x: np.ndarray) -> list[list]:
    """[[x, kind, text]], sorted by x. kind: `setting`, `alarm`, `checkpoint` or `resume`.

    alarms: (step, title) of the active alarms. x: the position of each record on the axis.
    """
    steps = np.array(series.steps)
    if not len(steps):
        return []
    events = [(step, "setting", text) for step, text in changes(series)]
    events += [(step, "alarm", title) for step, title in alarms]
    saved = (
        [int(path.name.rpartition("_")[2]) for path in run.checkpoints()]
        if hasattr(run, "checkpoints")
        else []
    )
    events += [(step, "checkpoint", "checkpoint") for step in saved]
    resumes = run.info.get("resumed_at", [])  # older runs have no such field
    # the info of a recording may contain resumes that the playback has not reached
    events += [(step, "resume", "resumed") for step in resumes if step <= steps[-1]]
    # a branch's run.json has its parent's events, whose steps the parent's chart shows
    events = [event for event in events if event[0] >= steps[0]]
    rows = np.minimum(np.searchsorted(steps, [step for step, _, _ in events]), len(steps) - 1)
    placed = [[float(x[row]), kind, f"{text}, step {step}"] for row, (step, kind, text) in zip(rows, events)]
    return sorted(placed)[-MOST:]


def changes(series: Series) -> list[tuple[int, str]]:
    """(step, text) of the settings that were changed during the run.

    run.json lists the steps of changes. For an older run, a change is a jump between two stretches of nearly constant values.
    Warm-up and decay change a value at every step, and do not count.
    """
    texts, info = [], series.run.info
    by_user, others = (list(info.get(name, ())) for name in ("changed_at", "other_settings_at"))
    for control, metrics in CONTROLS.items():
        for metric in metrics:
            rows, values = series.column(metric)
            steps = np.array(series.steps)[rows]
            for i in _known_jumps(steps, values, by_user, others) if "changed_at" in info else _jumps(values):
                text = f"{NAMES[control]} {values[i - 1]:.3g} → {values[i]:.3g}"
                texts.append((int(steps[i]), text))
    return texts


def _known_jumps(steps: np.ndarray, values: np.ndarray, by_user: list[int], others: list[int]) -> list[int]:
    """The indices of the first values after known changes, if a value differs from the preceding value, and stays.

    A schedule without a change has another value at the next step, too. A value that a user has set stays the same, so that also
    a small difference between two constant values counts. steps, values: [n]. by_user, others: steps of changes.
    """
    ratios = _ratios(values)
    first = np.searchsorted(steps, by_user + others, side="right").tolist()
    after = {i for i in first if 0 < i < len(values)}
    stays = {i for i in after if i + 1 in after or (ratios[i:] < CALM)[:1].all()}
    jumps = {i for i in stays if ratios[i - 1] > CALM}
    constant = {i for i in after if (ratios[i - 2 : i - 1] == 1).all() and (ratios[i:] == 1)[:1].any()}
    small = {i for i in constant & {*first[: len(by_user)]} if ratios[i - 1] > 1}
    return sorted(jumps | small)


def _jumps(values: np.ndarray) -> np.ndarray:
    """The indices of values that jump from the preceding value, while the steps before and after the jump are small."""
    if len(values) < 3:
        return np.empty(0, dtype=np.int64)
    ratios = _ratios(values)  # ratios[i]: from value i to value i + 1
    after = np.append(ratios[2:], 1.0)
    return np.flatnonzero((ratios[:-1] < CALM) & (ratios[1:] > JUMP) & (after < CALM)) + 2


def _ratios(values: np.ndarray) -> np.ndarray:
    """The ratio of the larger to the smaller of two neighbours, [n − 1]; 1 for two zeros, infinite for a single zero."""
    sizes = np.abs(values)
    small, large = np.minimum(sizes[1:], sizes[:-1]), np.maximum(sizes[1:], sizes[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(large == 0, 1.0, large / small)
