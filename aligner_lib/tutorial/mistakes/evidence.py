"""Evidence of a mistake in a training run: the first figure that differs from the right run, and the most revealing chart.

Two right runs with different seeds differ, too. The distance between runs is therefore measured in units of the typical
difference between right runs. A metric shows a mistake only if the distance of the run with the mistake exceeds the distance of
every right run with another seed, in every metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from aligner_lib.config.kind import Chart
from aligner_lib.run_folder.reader import RunFolder

SMALLEST_SPREAD = 1e-3
"""A lower limit for the difference between right runs, as a share of the metric's size.

Some metrics have no difference between right runs, such as a ratio that is always 1.
"""
ROUNDING = 1e-5
"""Smaller differences are rounding errors: a loss that is exactly 0 in theory can be 0.0000001."""
CLOCKS = re.compile(r"^(time|timers/|memory/)|time$|per_second$")
"""Metrics of the machine, which differ from run to run."""
FILE = re.compile(r" \(functions\.\w+: [^)]*\)")
"""The location of a function in an error message."""

Series = Mapping[int, float]
"""A metric's values by step."""


@dataclass(frozen=True)
class MistakenRun:
    """A short run with a mistake, together with right runs."""

    kind: str
    """The kind of job."""
    steps: int
    """Steps of the right run."""
    ended: str = ""
    """The error that ended the run with the mistake; "" without an error."""
    differs_at: int | None = None
    """The first step at which a figure differs from the right run; None if all figures are equal."""
    figure: str = ""
    """A figure that differs at step `differs_at`."""
    chart: str = ""
    """The title of the chart that shows the mistake best; "" if no chart of the kind of job shows the mistake."""
    metric: str = ""
    """The metric that shows the mistake best: of the chart, or else any logged metric; "" if no metric shows the mistake."""
    wrong: tuple[tuple[int, float], ...] = ()
    """The metric in the run with the mistake: (step, value)."""
    right: tuple[tuple[int, float], ...] = ()
    """The metric in the right run, with the same seed."""
    others: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The metric in right runs with other seeds."""

    @property
    def sentence(self) -> str:
        """The run in one or two sentences, for the learner."""
        if self.ended:
            return f"The job does not get far with this mistake: {self.ended}"
        if self.differs_at is None:
            return (
                f"In {self.steps} steps no figure differs from the right run's. Training does not show this mistake: a test with "
                "inputs of a known result does."
            )
        begins = f"The figures differ from step {self.differs_at} on (`{self.figure}`)"
        if not self.metric:
            return (
                f"{begins}, but no chart shows the mistake in {self.steps} steps: right runs with other seeds differ from the right "
                "run as much."
            )
        if not self.chart:
            return f"{begins}. No chart of a monitor shows the mistake, unless you add the metric `{self.metric}`."
        return f"{begins}. The chart {self.chart} shows the mistake best."


def evidence_of(
    wrong: RunFolder, right: RunFolder, others: Sequence[RunFolder], charts: Sequence[Chart], steps: int
) -> MistakenRun:
    """Find the evidence of the mistake in a run.

    wrong: the run with the mistake. right: the run with the same seed and the right function. others: at least two right runs
    with other seeds. steps: of a complete run.
    """
    title: dict[str, str] = {}
    for metric, chart in _charted(charts):
        title.setdefault(metric, chart.title)
    ended = "" if wrong.status == "finished" else FILE.sub("", str(wrong.info.get("message", "")))
    differs_at, figure = _first_difference(wrong, right, [*title])
    shown = MistakenRun(right.kind, steps, ended, differs_at, figure)
    if differs_at is None:
        return shown
    logged = {
        name: ""
        for record in right.metrics()
        for name in record
        if name != "step" and not CLOCKS.search(name)
    }
    for candidates in (title, logged):
        series = {
            metric: (_series(wrong, metric), _series(right, metric), [_series(run, metric) for run in others])
            for metric in candidates
        }
        series = {metric: three for metric, three in series.items() if three[0] and three[1]}
        best = max(series, key=lambda metric: _distance(*series[metric]), default="")
        if best and _distance(*series[best]) > _bound(series.values()):
            of_wrong, of_right, of_others = series[best]
            return replace(
                shown,
                chart=candidates[best],
                metric=best,
                wrong=_points(of_wrong),
                right=_points(of_right),
                others=tuple(map(_points, of_others)),
            )
    return shown


def _charted(charts: Sequence[Chart]) -> Iterator[tuple[str, Chart]]:
    for chart in charts:
        for line in chart.lines:
            for metric in line.metrics:
                if "*" not in metric:
                    yield metric, chart


def _series(run: RunFolder, metric: str) -> Series:
    return dict(zip(*run.series(metric), strict=True))


def _points(series: Series) -> tuple[tuple[int, float], ...]:
    return tuple((step, float(f"{value:.5g}")) for step, value in sorted(series.items()))


def _first_difference(wrong: RunFolder, right: RunFolder, charted: list[str]) -> tuple[int | None, str]:
    """The first step with a difference, and a differing figure of the step, if possible a charted figure."""
    for record, expected in zip(wrong.metrics(), right.metrics()):
        names = [
            name
            for name in [*charted, *record]
            if name in record and not CLOCKS.search(name) and not _alike(record[name], expected.get(name))
        ]
        if names:
            return record["step"], names[0]
    return None, ""


def _alike(value: object, expected: object) -> bool:
    if isinstance(value, float) and isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return value == expected


def _distance(run: Series, right: Series, others: Sequence[Series]) -> float:
    """The mean difference from the right run, divided by the mean difference between the right run and the other right runs."""
    spread = fmean(_apart(other, right) for other in others)
    size = max(map(abs, right.values()))
    return _apart(run, right) / max(spread, SMALLEST_SPREAD * size, ROUNDING)


def _apart(run: Series, right: Series) -> float:
    steps = run.keys() & right.keys()
    return fmean(abs(run[step] - right[step]) for step in steps) if steps else 0.0


def _bound(series) -> float:
    """The largest distance of a right run, measured with the remaining right runs, over all metrics; at least 1."""
    several = [*series]
    count = min(len(others) for _, _, others in several)
    return max(
        1.0,
        *(
            _distance(others[at], right, [*others[:at], *others[at + 1 :]])
            for _, right, others in several
            for at in range(count)
        ),
    )
