"""Packs runs for the browser: first a snapshot, then only the changes."""

from __future__ import annotations

import time

import numpy as np

from aligner_lib.run_folder.alarms import Thresholds
from widgets.frontend.wire import finite, pack
from widgets.runs import charts, downsample
from widgets.runs.alarms import Alarms
from widgets.runs.branching import Branching
from widgets.runs.charts import Chart, charts_for
from widgets.runs.comparison import compare
from widgets.runs.control import Steering
from widgets.runs.marks import marks
from widgets.runs.progress import progress
from widgets.runs.series import AXES, Series, as_runs, distinct_names
from widgets.runs.waiting import Resubmission

MAX_POINTS = 2000  # points per line
MAX_UPDATE_BYTES = 45_000


def open_feed(
    runs, metrics: list | None = None, axis: str = "step", limits=None, budget_seconds: float = float("inf")
) -> Feed:
    """A Feed of a run or a list of runs, after reading metrics for at most budget_seconds.

    Raises ValueError for an unknown axis or an empty list.
    """
    if axis not in AXES:
        raise ValueError(f"axis={axis!r}; the axes are {', '.join(AXES)}")
    feed = Feed(as_runs(runs), metrics, axis, limits)
    feed.poll(budget_seconds)
    return feed


class Feed:
    """Packs runs for the browser. `snapshot()` has all data, `update()` has the changes since the last call.

    Snapshots and updates have a version. The browser applies an update only to the preceding version (`base`). Otherwise, the
    browser requests a snapshot, because a page may miss an update during a reload.
    """

    def __init__(
        self, runs: list, metrics: list | None = None, axis: str = "step", limits: Thresholds | None = None
    ):
        self.runs = runs
        self.series = [Series(run, beside=runs) for run in runs]
        self.metrics = metrics
        self._added: list[str] = []  # metrics that the reader has added
        self.axis = axis
        self.version = 0
        self._given_limits = limits
        self.limits = limits or Thresholds()
        self._run_alarms = [Alarms(run, run_series, limits) for run, run_series in zip(runs, self.series)]
        steerable = len(runs) == 1 and _player(runs[0]) is None
        self._steering = Steering(runs[0]) if steerable else None
        self.branching = Branching(runs[0], None)  # a monitor replaces this object
        self.resubmission = Resubmission(None)  # a monitor, which knows the job, replaces this object
        self._sent: dict[str, tuple[int, int]] = {}  # line → (records, bucket size) in the browser
        self._generations = [run_series.generation for run_series in self.series]
        self._head: dict = {}
        self._layout: list = []

    def poll(self, budget_seconds: float = float("inf")) -> bool:
        """Read new metrics, for at most budget_seconds. Returns True if there were any."""
        return any([series.poll(budget_seconds) for series in self.series])

    @property
    def charts(self) -> list[Chart]:
        """The charts of `metrics`, or else the default charts of the kind of run, followed by the charts added by the user."""
        return self._own_charts() + charts_for(self.series, "", self._added)

    def _own_charts(self) -> list[Chart]:
        kind = next((run.kind for run in self.runs if run.kind), "")
        return charts_for(self.series, kind, self.metrics)

    def add(self, metric: str) -> None:
        """Add a chart of a metric at the end, unless the chart exists."""
        self._added = [*dict.fromkeys([*self._added, metric])]

    def remove(self, metric: str) -> None:
        """Remove the added chart of a metric."""
        self._added = [added for added in self._added if added != metric]

    def follow(self, run) -> None:
        """Add a run to the charts. The buttons that change a single run are no longer available afterwards."""
        self.runs.append(run)
        series = Series(run, beside=self.runs)
        self.series.append(series)
        self._run_alarms.append(Alarms(run, series, self._given_limits))
        self._steering = None

    def steer(self, content: dict) -> None:
        """Handle a button's message; see widgets.runs.control.Steering."""
        if self._steering is not None:
            self._steering.execute(content)

    def snapshot(self) -> bytes:
        """A message with all points, for a new page."""
        self._generations = [run_series.generation for run_series in self.series]
        self._sent.clear()
        self.version += 1
        self._layout = self._resolve()
        self._head = self._describe()
        return self._pack("snapshot", self._head, [self._points(*line) for line in self._lines()])

    def update(self) -> bytes | None:
        """A message with the changes; None without changes."""
        if self._layout != self._resolve() or self._generations != [
            run_series.generation for run_series in self.series
        ]:
            return self.snapshot()
        head = self._describe()
        news = {key: value for key, value in head.items() if value != self._head[key]}
        points, size = [], 0
        for key, x, y in self._lines():
            if size < MAX_UPDATE_BYTES and (new := self._points(key, x, y)) is not None:
                points.append(new)
                size += new[1].size * 4
        if not points and not news:
            return None
        self._head = head
        self.version += 1
        return self._pack("update", news | {"base": self.version - 1}, points)

    def detail(self, low: float, high: float) -> bytes:
        """A message with the lines between two values of the axis, with more points."""
        lines, points = [], []
        for key, x, y in self._lines():
            # an additional record on each side, so that the line reaches the edges
            start = max(0, int(np.searchsorted(x, low)) - 1)
            stop = int(np.searchsorted(x, high, side="right")) + 1
            size = downsample.bucket_size(len(y[start:stop]), MAX_POINTS)
            points.append(downsample.downsample(x[start:stop], y[start:stop], size))
            lines.append({"key": key, "size": size, "count": len(points[-1])})
        return pack({"kind": "detail", "view": [low, high], "version": self.version, "lines": lines}, points)

    def rows(self, run: int, start: int, stop: int) -> dict:
        """{metrics, rows}: the drawn metrics that a run has, and their values in its records from `start` to before `stop`."""
        series = self.series[run]
        drawn = dict.fromkeys(m for chart in self.charts for line in chart.lines for m in line.metrics)
        metrics = [metric for metric in drawn if metric in series.metrics]
        return {"metrics": metrics, "rows": finite(series.table(metrics, start, stop))}

    # -- parts ----------------------------------------------------------------------------------------------------

    def _lines(self):
        """(key, x, y) of every line of every chart. The key is `run/chart/line`; `0/step` are the steps of run 0."""
        for r, series in enumerate(self.series):
            x = series.axis(self.axis)
            if self.axis != "step":  # the browser then also needs the step of each x
                yield f"{r}/step", x, series.axis("step")
            for c, chart in enumerate(self.charts):
                for k, line in enumerate(chart.lines):
                    rows, values = charts.drawable(line, series)
                    yield f"{r}/{c}/{k}", x[rows], values
                    if (deviations := charts.deviations(line, series)) is not None:
                        yield f"{r}/{c}/{k}/spread", x[rows], deviations

    def _points(self, key: str, x: np.ndarray, y: np.ndarray) -> tuple[dict, np.ndarray] | None:
        """The points that the browser lacks, and instructions for merging them; None if the browser has all points."""
        sent, sent_size = self._sent.get(key, (0, downsample.RAW))
        if sent == len(y) and key in self._sent:
            return None
        size = downsample.bucket_size(len(y), MAX_POINTS)
        fold = (size // sent_size).bit_length() - 1 if sent else 0
        keep = downsample.closed_points(sent, size)
        points = downsample.downsample(x, y, size, start=keep // 2 * size)
        self._sent[key] = (len(y), size)
        return {"key": key, "fold": fold, "keep": keep, "size": size, "count": len(points)}, points

    def _describe(self) -> dict:
        """The head of a message without the points: the state of the runs, the charts and the controls."""
        own, added = self._own_charts(), charts_for(self.series, "", self._added)
        submitted_again = [self.resubmission.awaits(run) for run in self.runs]
        names = distinct_names(self.runs)
        # must precede the headings and marks, which read the alarms' first steps
        alarms_now = self._alarms(names)
        head = {
            "axis": self.axis,
            "runs": [
                progress(run, name, series, again, [step for step, _ in alarms.beginnings])
                for run, name, series, again, alarms in zip(
                    self.runs, names, self.series, submitted_again, self._run_alarms
                )
            ],
            "timers": [charts.timers(series) for series in self.series],
            "charts": [_spec(c) | {"added": ""} for c in own]
            + [_spec(c) | {"added": metric} for c, metric in zip(added, self._added, strict=True)],
            "comparison": compare(self.runs, self.series, own + added) if len(self.runs) > 1 else None,
            "steering": self._steer_view(submitted_again[0]),
            "branching": None if submitted_again[0] else self.branching.view(),
            "alarms": alarms_now,
            "records": [len(series) for series in self.series],
            "skipped": [series.skipped for series in self.series],
            "gaps": self._gaps(),
            "marks": [
                marks(run, run_series, alarms.beginnings, run_series.axis(self.axis))
                for run, run_series, alarms in zip(self.runs, self.series, self._run_alarms)
            ],
            "metrics": sorted({metric for series in self.series for metric in series.metrics}),
            "stale_seconds": self.limits.heartbeat_seconds,
            "players": [_player(run) for run in self.runs],
            "can_stop": all(hasattr(run, "request_stop") for run in self.runs),
        }
        return finite(head)  # a NaN would differ from itself in `update`

    def _steer_view(self, submitted_again: bool) -> dict | None:
        """The state of the buttons; None without buttons.

        Before a resubmitted job has started, there is no Undo button, because the job may load any checkpoint.
        """
        if self._steering is None:
            return None
        view = self._steering.view(self.series[0])
        return view | {"undo": ""} if submitted_again else view

    def _gaps(self) -> dict[str, list]:
        """{line: [[first x, last x, value]]} of the records that a chart cannot draw (charts.gaps)."""
        gaps = {}
        for r, series in enumerate(self.series):
            x = series.axis(self.axis)
            for c, chart in enumerate(self.charts):
                for k, line in enumerate(chart.lines):
                    spans = [[float(x[i]), float(x[j]), name] for i, j, name in charts.gaps(line, series)]
                    gaps |= {f"{r}/{c}/{k}": spans} if spans else {}
        return gaps

    def _alarms(self, names: list[str]) -> list[dict]:
        several = len(self.runs) > 1
        return [
            alarm | {"where": f"{name}, {alarm['where']}" if several else alarm["where"]}
            for name, alarms in zip(names, self._run_alarms)
            for alarm in alarms.now()
        ]

    def _resolve(self) -> list:
        """The metric of each line. After a change, the browser needs a new snapshot."""
        return [
            (chart.title, line.label, [charts.metric_of(line, series) for series in self.series])
            for chart in self.charts
            for line in chart.lines
        ]

    def _pack(self, kind: str, head: dict, points: list) -> bytes:
        points = [point for point in points if point is not None]
        head = {
            "kind": kind,
            "version": self.version,
            "now": time.time(),
            **head,
            "lines": [line for line, _ in points],
        }
        return pack(head, [values for _, values in points])


def _spec(chart: Chart) -> dict:
    return {
        "title": chart.title,
        "hint": chart.hint,
        "unit": chart.unit,
        "exact": chart.exact,
        "least": chart.least,
        "lines": [line.label for line in chart.lines],
        "splits": [_split(line.metrics[0]) for line in chart.lines],
    }


def _split(metric: str) -> str:
    """The split of the completions that belong to a metric."""
    return (
        "validation" if metric.startswith(("val_rollouts/", "val_environments/", "validation/")) else "train"
    )


def _player(run) -> dict | None:
    """{speed} of a recording, where None means an infinite speed; None for a run."""
    return {"speed": run.speed if run.speed < float("inf") else None} if hasattr(run, "restart") else None
