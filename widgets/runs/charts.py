"""The charts of a monitor, and the values of a chart's lines in a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from aligner_lib.config.kind import Chart, Line, chart
from aligner_lib.config.kinds import charts_of, kinds
from widgets.runs.series import Series

LARGEST = 1e30  # points are 32-bit floats, and a larger value would hide all other values of a chart
MOST_GAPS = 50  # number of marked gaps per line
OWN_CHARTS = 3  # number of default charts for an environment's own metrics; the reader can add others


def metric_of(line: Line, series: Series) -> str:
    """The first metric of a line that the run has logged; without any, the line's first metric."""
    known = series.metrics
    return next((metric for metric in line.metrics if metric in known), line.metrics[0])


def column(line: Line, series: Series) -> tuple[np.ndarray, np.ndarray]:
    """(rows, values) of a line in a run; empty if the run has not logged any of the line's metrics."""
    rows, values = series.column(metric_of(line, series))
    if not line.minus:
        return rows, values
    other_rows, others = series.column(line.minus)
    rows, own_rows, their_rows = np.intersect1d(rows, other_rows, return_indices=True)
    return rows, values[own_rows] - others[their_rows]


def drawable(line: Line, series: Series) -> tuple[np.ndarray, np.ndarray]:
    """(rows, values) of a line without values beyond LARGEST. `gaps` lists these values, and NaN and infinity."""
    rows, values = column(line, series)
    small = np.abs(values) <= LARGEST
    return (rows, values) if small.all() else (rows[small], values[small])


def gaps(line: Line, series: Series) -> list[tuple[int, int, str]]:
    """The gaps of a line, with values that a chart cannot draw: (first row, last row, value). At most MOST_GAPS, among them the
    last gap, which may be the line's latest value.

    value: `NaN`, `∞`, `−∞`, or a number beyond LARGEST. Consecutive records with the same value are a single gap.
    """
    spans = []
    for metric in filter(None, (metric_of(line, series), line.minus)):
        places, rows, values = series.beyond(metric, LARGEST)
        for place, row, name in zip(places.tolist(), rows.tolist(), map(_named, values.tolist())):
            if spans and spans[-1][3] == (metric, name, place - 1):
                spans[-1] = (spans[-1][0], row, name, (metric, name, place))
            else:
                spans.append((row, row, name, (metric, name, place)))
    spans.sort()
    if len(spans) > MOST_GAPS:
        spans[MOST_GAPS - 1 :] = spans[-1:]
    return [gap[:3] for gap in spans]


def last_value(line: Line, series: Series) -> float | None:
    """The last value of a line, finite or not; None without values."""
    value = series.latest(metric_of(line, series))
    other = series.latest(line.minus) if line.minus else 0.0
    return None if None in (value, other) else value - other


def _named(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.0e}".replace("e+", "e").replace("-", "−")


def deviations(line: Line, series: Series) -> np.ndarray | None:
    """The standard deviation at each drawable record of a line, float64 [records]. NaN: a record without standard deviation.

    None for a line without standard deviations.
    """
    metric = spread(line, series)
    if not metric:
        return None
    rows, _ = drawable(line, series)
    aligned = np.full(len(rows), np.nan)
    spread_rows, values = series.column(metric)
    _, here, there = np.intersect1d(rows, spread_rows, return_indices=True)
    aligned[here] = np.where(np.abs(values[there]) <= LARGEST, values[there], np.nan)
    return aligned


def spread(line: Line, series: Series) -> str:
    """The name of the metric with a line's standard deviation; "" without such a metric."""
    stem = metric_of(line, series).removesuffix("_mean")
    return stem + "_std" if not line.minus and stem + "_std" in series.metrics else ""


def charts_for(series: list[Series], kind: str, metrics: list | None = None) -> list[Chart]:
    """The charts of `metrics`, or else the default charts of the kind of run for which the runs have metrics.

    metrics: metric names, lists of names for a common chart, or results of `chart`.
    """
    known = list(dict.fromkeys(metric for run_series in series for metric in run_series.metrics))
    if metrics is not None:
        return [c for metric in metrics for c in _with_names(_as_chart(metric), known)]
    if default := charts_of(kind):
        charts = [c for suited in default for c in _with_names(suited, known, kind)]
        return [c for c in charts if any(m in known for line in c.lines for m in line.metrics)]
    return [_as_chart(metric) for metric in sorted(known) if not metric.startswith("timers/")][:9]


def _with_names(chart: Chart, known: list[str], kind: str = "") -> list[Chart]:
    """Replace the `*` in a chart's metrics by the names in the known metrics, with a line for each name.

    A chart without `*` is returned unchanged. A second `*` also gives a line for each name. A chart with the title `*` becomes a chart for each metric name, with the name as
    title: at most OWN_CHARTS charts, names without a slash first.
    """
    if not any("*" in line.metrics[0] for line in chart.lines):
        return [chart]
    plain = [line for line in chart.lines if "*" not in line.metrics[0]]
    by_title: dict[str, dict[str, list[Line]]] = {}  # second name → first name → lines
    for line in [line for line in chart.lines if line not in plain]:
        for name, second, metric in _matches(line.metrics[0], known, kind):
            is_title = chart.title == "*"
            label = f"{name}/{second}" if second and not is_title else name
            own = Line(f"{label}, {line.label}", (metric,))
            by_title.setdefault(second if is_title else "", {}).setdefault(label, []).append(own)
    titles = sorted(by_title, key=lambda second: second.count("/"))[
        : OWN_CHARTS if chart.title == "*" else None
    ]
    order = list(dict.fromkeys(name for lines in by_title.values() for name in lines))
    return [
        replace(
            chart,
            title=title if chart.title == "*" else chart.title,
            lines=(*plain, *(line for name in order for line in by_title[title].get(name, ()))),
        )
        for title in titles
    ]


def _matches(pattern: str, known: list[str], kind: str) -> Iterator[tuple[str, str, str]]:
    """(first name, second name, metric) of the known metrics that are declared by a pattern with one or two `*`."""
    first, _, rest = pattern.partition("*")
    rest = "(.+)".join(map(re.escape, rest.split("*"))) + ("" if "*" in rest else "()")
    declared = kinds()[kind].declared_as if kind in kinds() else lambda metric: pattern
    for metric in known:
        match = re.fullmatch(f"{re.escape(first)}([^/]+){rest}", metric)
        if match and declared(metric) == pattern:
            yield match[1], match[2], metric


def _as_chart(metric) -> Chart:
    if isinstance(metric, Chart):
        return metric
    if isinstance(metric, str):
        everywhere = (chart for kind in kinds() for chart in charts_of(kind))
        known = next((c for c in everywhere for line in c.lines if metric == line.metrics[0]), None)
        own = {"hint": known.hint, "least": known.least} if known else {}
        return chart(metric, metric, **own)
    names = list(metric)
    return chart(" · ".join(_short(names)), *((name, name) for name in names))


def _short(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[2] for name in names))


# -- timers ---------------------------------------------------------------------------------------------------------

# parts of timers/rollout_time
IN_ROLLOUT = ("refresh_generator", "generate", "environments", "logprobs", "init_logprobs", "critic_wait")
# parts of timers/step_time; the validation is not a part of the step
IN_STEP = ("rollout_time", "train_time")
LABELS = {
    "refresh_generator": "sending weights",
    "init_logprobs": "reference logprobs",
    "critic_wait": "waiting for the critic",
}
TIMED_RECORDS = 10


def timers(series: Series) -> list[tuple[str, float]]:
    """(stage, mean seconds per step) over the last TIMED_RECORDS records, including the time that no timer covers.

    A stage of at most 1 % of the rollout counts as `other rollout`.
    """
    means = {}
    for name in (*IN_ROLLOUT, *IN_STEP, "step_time"):
        _, values = series.column(f"timers/{name}")
        if len(values):
            means[name] = float(values[-TIMED_RECORDS:].mean())
    shown = [name for name in IN_ROLLOUT if means.get(name, 0.0) > 0.01 * means.get("rollout_time", 0.0)]
    parts = [(LABELS.get(name, name), means[name]) for name in shown]
    parts += _rest("other rollout", means, "rollout_time", shown)
    if "train_time" in means:
        parts.append(("train", means["train_time"]))
    return parts + _rest("other", means, "step_time", IN_STEP) if parts else []


def _rest(label: str, means: dict[str, float], whole: str, parts: Iterable[str]) -> list[tuple[str, float]]:
    """The remainder of the timer `whole` beyond its parts; empty for a remainder of at most 1 % of `whole`."""
    rest = means.get(whole, 0.0) - sum(means.get(part, 0.0) for part in parts)
    return [(label, rest)] if rest > 0.01 * means.get(whole, 0.0) else []
