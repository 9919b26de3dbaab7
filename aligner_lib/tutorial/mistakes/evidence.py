"""What a training run shows of a mistake: the first figure that differs from the right run's, and the chart where it shows best.

Two right runs with different seeds differ, too. A metric shows a mistake only if the run with the mistake is farther from the right run,
in units of the differences between right runs, than any right run with another seed is in any metric.
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
"""Share of a metric's size that counts as the least difference between right runs: a ratio that is always 1 has none."""
ROUNDING = 1e-5
"""Differences of this size show nothing: a loss that is 0 by construction is 0.0000001."""
CLOCKS = re.compile(r"^(time|timers/|memory/)|time$|per_second$")
"""Metrics of the machine."""
FILE = re.compile(r" \(functions\.\w+: [^)]*\)")
"""Where a function is, in an error."""

Series = Mapping[int, float]
"""A metric's values by step."""


@dataclass(frozen=True)
class MistakenRun:
    """A short run with a mistake, beside right runs."""

    kind: str
    """The kind of job."""
    steps: int
    """Steps of the right run."""
    ended: str = ""
    """The error that ended the run with the mistake, "" if it went to its end."""
    differs_at: int | None = None
    """The first step with a figure that differs from the right run's; None if all figures are equal."""
    figure: str = ""
    """A figure that differs at this step."""
    chart: str = ""
    """The title of the chart that shows the mistake best, "" if no chart of the kind shows it."""
    metric: str = ""
    """The metric that shows the mistake best: one of the chart, else one that a monitor can add; "" if no metric shows it."""
    wrong: tuple[tuple[int, float], ...] = ()
    """The metric in the run with the mistake: steps and values."""
    right: tuple[tuple[int, float], ...] = ()
    """The metric in the right run, with the same seed."""
    others: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The metric in right runs with other seeds."""

    @property
    def sentence(self) -> str:
        """The run in a sentence or two, for the learner."""
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
    """What a run with a mistake shows.

    right: the run with the same seed and the right function. others: right runs with other seeds, two at least. steps: of a run
    that goes to its end.
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
    """The first step with a difference, and a figure that differs there: a charted one if there is one."""
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
    """The mean difference from the right run, in units of the other right runs' mean difference from it."""
    spread = fmean(_apart(other, right) for other in others)
    size = max(map(abs, right.values()))
    return _apart(run, right) / max(spread, SMALLEST_SPREAD * size, ROUNDING)


def _apart(run: Series, right: Series) -> float:
    steps = run.keys() & right.keys()
    return fmean(abs(run[step] - right[step]) for step in steps) if steps else 0.0


def _bound(series) -> float:
    """The largest distance of a right run, beside the right runs that are left; at least 1."""
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
