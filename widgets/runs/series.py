"""A run's metrics as growing columns, which need much less memory than the records."""

from __future__ import annotations

import math
import os
import time
from array import array
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from aligner_lib.run_folder.reader import RunFolder

CHUNK_BYTES = 1 << 20
NUMBERS = {int, float}  # exact types: a fast test, which excludes bool
LIMIT = 2**63  # steps are int64; records with a larger step or time are skipped
TOKEN_METRICS = ("train/tokens", "train_rollouts/tokens")
AXES = ("step", "time", "tokens")


def as_run(run):
    """The RunFolder of a path. A RunFolder or Recording is returned unchanged."""
    return run if hasattr(run, "metrics_reader") else RunFolder(run)


def as_runs(runs) -> list:
    """A list of runs, made from a run or a list of runs. Raises ValueError for an empty list."""
    runs = [as_run(run) for run in (runs if isinstance(runs, (list, tuple)) else [runs])]
    if not runs:
        raise ValueError("[] holds no run: give a run folder, or a list of them")
    return runs


def distinct_names(runs: list) -> list[str]:
    """The runs' names. Before names that are the same stands the first part of the paths in which these runs differ (`seat-2 ppo`);
    folders that were renamed have their own names.

    Packed runs of the same name have a number (`ppo 2`), because their paths are not the run folders'. So have runs without a
    part of the paths that is different for each.
    """
    names = [run.info.get("name") or run.name for run in runs]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        paths = [Path(runs[place].path) for place in places]
        is_packed = any(path.is_file() for path in paths)
        own = [runs[place].name for place in places]
        if not is_packed and len(set(own)) == len(own):
            distinct = own
        elif not is_packed and (folders := _folders_that_differ(paths)):
            distinct = [f"{folder} {name}" for folder in folders]
        else:
            distinct = [f"{name} {number}" for number in range(1, len(places) + 1)]
        for place, label in zip(places, distinct):
            names[place] = label
    return names


def _folders_that_differ(paths: list[Path]) -> Iterable[str]:
    """The first parts of the paths that are different for each path; () without such parts."""
    parts = zip(*(Path(os.path.abspath(path)).parts for path in paths))  # without `..`
    return next((folders for folders in parts if len(set(folders)) == len(paths)), ())


def fork_of(run, beside: list) -> int:
    """The last common step of a branch and its parent, if the parent is among the runs `beside`; otherwise 0."""
    return run.info["parent"]["step"] if _parent_of(run, beside) else 0


def _parent_of(run, beside: list):
    """The parent of a branch, if the parent is among the runs `beside`; otherwise None."""
    if (parent := run.info.get("parent")) is None:
        return None
    return next((other for other in beside if other is not run and _is_parent(other, parent)), None)


def _is_parent(run, parent: dict) -> bool:
    """Whether a run is a branch's parent: the folder, or a packed run of the same attempt, which has no path."""
    if "run" in parent and _is_at(run, parent):
        return True
    if (created := parent.get("created")) is not None:
        return run.info.get("created") == created
    return "run" not in parent and run.info.get("name") == parent["name"]


def _is_at(run, parent: dict) -> bool:
    """Whether a run's folder is the folder of a branch's parent; the same folder has several names."""
    path = getattr(run, "path", None)
    return isinstance(path, Path) and os.path.realpath(path) == os.path.realpath(parent["run"])


def _starts(run, beside: list) -> list[float]:
    """The unix times of the starts of a branch and of its ancestors, as far as each has its parent among the runs `beside`."""
    parent, others = _parent_of(run, beside), [other for other in beside if other is not run]
    return [run.info.get("created", math.inf), *_starts(parent, others)] if parent else []


class Series:
    """Follows the metrics of a run.

    `generation` changes when earlier records become invalid, because a resumed run went back. If the parent of a branch is
    among the runs `beside`, the branch's records start at the fork. The parent's records show the earlier steps.
    """

    def __init__(self, run, beside: list = ()):
        self.run = run
        self._beside = beside
        self.generation = 0
        self._reader = run.metrics_reader()
        self._restarts = 0
        self._clear()

    def _clear(self) -> None:
        self.steps = array("q")
        self.times = array("d")
        self._rows: dict[str, array] = {}
        self._values: dict[str, array] = {}
        self._without_place = 0
        # of a branch beside its parent: all of its records, and the starts of the branch and of its ancestors
        self._whole: Series | None = None
        self._branched: list[float] = []
        self.not_finite: dict[str, list[int]] = {}  # metric → the first steps with a NaN or infinite value

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def whole(self) -> Series:
        """The Series with all records of the run, also those before the fork of a branch beside its parent."""
        return self if self._whole is None else self._whole

    @property
    def skipped(self) -> int:
        """The number of unreadable lines and of records without a usable step or time."""
        return self._without_place + self._reader.skipped

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics read so far, in order of appearance."""
        return list(self._values)

    def poll(self, budget_seconds: float = float("inf")) -> bool:
        """Read new records. Returns True if there were any, or if earlier ones became invalid.

        Stops after budget_seconds. The next call reads the remaining records.
        """
        deadline = time.monotonic() + budget_seconds
        news = False
        while True:
            records = self._reader.poll(CHUNK_BYTES)
            # checked also without records, because a run that was begun anew has none at first
            if self._reader.restarts != self._restarts:
                self._restarts = self._reader.restarts
                self.generation += 1
                self._clear()
                news = True
            if not records:
                break
            fork = 0 if self.steps else fork_of(self.run, self._beside)
            if fork and self._whole is None:
                self._whole, self._branched = Series(self.run), _starts(self.run, self._beside)
            if self._whole is not None:
                self._whole.extend(records)
            self.extend(_from_fork(records, fork) if fork else records)
            news = True
            if time.monotonic() > deadline:
                break
        return news

    def extend(self, records: list[dict]) -> None:
        """Append records with an integer `step` and a `time` in unix seconds. All other numbers in a record are metrics."""
        if not _all_have_places(records):
            whole = [record for record in records if _all_have_places([record])]
            self._without_place += len(records) - len(whole)
            records = whole
        for part in _ascending(records):
            if self.steps and part[0]["step"] < self.steps[-1]:
                self._cut(part[0]["step"])
            self._append(part)

    def _append(self, records: list[dict]) -> None:
        first = len(self.steps)
        self.steps.extend([record["step"] for record in records])
        self.times.extend([record["time"] for record in records])
        for metric in dict.fromkeys(chain.from_iterable(records)):
            if metric in ("step", "time"):
                continue
            values = [record.get(metric) for record in records]
            rows = range(first, first + len(records))
            if not set(map(type, values)) <= NUMBERS:
                rows = [row for row, value in zip(rows, values) if type(value) in NUMBERS]
                values = [value for value in values if type(value) in NUMBERS]
            if values:
                self._append_metric(metric, rows, values)

    def _append_metric(self, metric: str, rows, values: list[float]) -> None:
        self._rows.setdefault(metric, array("i")).extend(rows)
        try:
            numbers = array("d", values)
        except OverflowError:
            numbers = array("d", map(_as_float, values))
        self._values.setdefault(metric, array("d")).extend(numbers)
        if not math.isfinite(sum(numbers)):
            bad = self.not_finite.setdefault(metric, [])
            bad.extend(self.steps[row] for row, value in zip(rows, numbers) if not math.isfinite(value))
            del bad[100:]

    def _cut(self, step: int) -> None:
        """Drop the records from `step` on. A resumed run goes back to an earlier step and writes these records again."""
        self.generation += 1
        keep = int(np.searchsorted(np.frombuffer(self.steps, dtype=np.int64), step))
        del self.steps[keep:], self.times[keep:]
        for metric, rows in self._rows.items():
            n = int(np.searchsorted(np.frombuffer(rows, dtype=np.int32), keep))
            del rows[n:], self._values[metric][n:]
        self.not_finite = {m: [s for s in bad if s < step] for m, bad in self.not_finite.items()}

    # -- data for charts ------------------------------------------------------------------------------------------

    def column(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """The finite values of a metric: (rows int32 [n], values float64 [n]).

        Both arrays are copies, so the series may grow while the caller uses them.
        """
        if metric not in self._values:
            return np.empty(0, dtype=np.int32), np.empty(0)
        rows, values = np.array(self._rows[metric], dtype=np.int32), np.array(self._values[metric])
        finite = np.isfinite(values)
        return (rows, values) if finite.all() else (rows[finite], values[finite])

    def last(self, metric: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The last values of a metric, finite or not: (rows int32 [n], values float64 [n]), with n at most `count`."""
        if metric not in self._values:
            return np.empty(0, dtype=np.int32), np.empty(0)
        return np.array(self._rows[metric][-count:], dtype=np.int32), np.array(self._values[metric][-count:])

    def beyond(self, metric: str, largest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values of a metric that are NaN, infinite or larger than `largest`: (places, rows, values), each [n].

        places: indices among the metric's values. rows: indices among the run's records.
        """
        if metric not in self._values:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0)
        values = np.array(self._values[metric])
        places = np.flatnonzero(~(np.abs(values) <= largest))
        return places, np.array(self._rows[metric], dtype=np.int32)[places], values[places]

    def axis(self, name: str) -> np.ndarray:
        """The x of every row on an axis, float64 [rows].

        name: `step`, `time` (seconds since the first record) or `tokens` (cumulative number of tokens generated or trained on).
        Beside its parent, a branch continues at the parent's time and tokens. The time between the parent's last shared record
        and the branch's first record after its start does not count. The same holds for the branch's ancestors beside their
        parents.
        """
        if name == "step":
            return np.array(self.steps, dtype=np.float64)
        if name == "time":
            # even if the clock was set back, no point moves to the left
            times = np.maximum.accumulate(np.array(self.whole.times))
            begun = np.searchsorted(times, self._branched)
            begun, pauses = begun[(begun > 0) & (begun < len(times))], np.zeros(len(times))
            pauses[begun] = times[begun] - times[begun - 1]
            times -= np.cumsum(pauses)
            return (times - times[:1])[len(times) - len(self) :]
        assert name == "tokens", f"no axis {name!r}; there are {AXES}"
        tokens = np.cumsum(self.whole.tokens())
        return tokens[len(tokens) - len(self) :]

    def tokens(self) -> np.ndarray:
        """The number of tokens of every row, generated or trained on, float64 [rows]; 0 for rows without the metric."""
        tokens = np.zeros(len(self))
        for metric in TOKEN_METRICS:
            rows, values = self.column(metric)
            tokens[rows] = values
        return tokens

    def latest(self, metric: str) -> float | None:
        """The last value of a metric, finite or not; None without values."""
        values = self._values.get(metric)
        return values[-1] if values else None

    def table(self, metrics: list[str], start: int, stop: int) -> list[dict]:
        """Rows start … stop − 1 as records, for the table of numbers."""
        stop = min(stop, len(self))
        records = [{"step": self.steps[row], "time": self.times[row]} for row in range(start, stop)]
        for metric in metrics:
            if metric not in self._rows:
                continue
            rows = np.array(self._rows[metric], dtype=np.int32)
            for i in range(*np.searchsorted(rows, [start, stop])):
                records[rows[i] - start][metric] = self._values[metric][i]
        return records


def _from_fork(records: list[dict], fork: int) -> list[dict]:
    """The records from the fork on, and those without a place on the axes, which `extend` counts."""
    return [record for record in records if not _all_have_places([record]) or record["step"] >= fork]


def _all_have_places(records: list[dict]) -> bool:
    """Whether every record has a step and a time that an axis can show."""
    steps, times = [r.get("step") for r in records], [r.get("time") for r in records]
    if not (set(map(type, steps)) <= {int} and set(map(type, times)) <= NUMBERS):
        return False
    return all(-LIMIT < place < LIMIT for place in chain(steps, times))  # False for NaN, too


def _as_float(value: float) -> float:
    """Convert a number to float. An integer beyond the range of floats becomes infinite, like 1e400 in JSON."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _ascending(records: list[dict]) -> Iterable[list[dict]]:
    """Split records into parts with ascending steps."""
    start = 0
    for i in range(1, len(records)):
        if records[i]["step"] < records[i - 1]["step"]:
            yield records[start:i]
            start = i
    if records:
        yield records[start:]
