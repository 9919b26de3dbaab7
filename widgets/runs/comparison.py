"""A comparison of several runs: last values with their differences, and the settings that differ."""

from __future__ import annotations

import math

from aligner_lib.config.kind import Chart
from aligner_lib.run_folder.reader import flatten
from widgets.runs.charts import last_value
from widgets.runs.series import Series

# settings of the attempt or of the machine, which do not influence the training
NO_DIFFERENCE = ("exp_manager.explicit_log_dir",)


def compare(runs: list, series: list[Series], charts: list[Chart]) -> dict:
    """{steps, values, settings} of several runs. steps: the last step of each run. See last_values and settings_that_differ."""
    return {
        "steps": [run_series.steps[-1] if len(run_series) else 0 for run_series in series],
        "values": last_values(series, charts),
        "settings": settings_that_differ([run.info for run in runs]),
    }


def last_values(series: list[Series], charts: list[Chart]) -> list[dict]:
    """[{label, unit, values, differences}] for every line: each run's last value, and the differences from the first run.

    A value is None for a run without the metric. A difference is None if a value is None or not finite.
    """
    rows = []
    for chart in charts:
        for line in chart.lines:
            values = [last_value(line, run_series) for run_series in series]
            label = chart.title if len(chart.lines) == 1 else f"{chart.title}, {line.label}"
            first, *others = values
            differences = [_difference(first, other) for other in others]
            rows.append({"label": label, "unit": chart.unit, "values": values, "differences": differences})
    return rows


def _difference(first: float | None, other: float | None) -> float | None:
    return None if None in (first, other) or not math.isfinite(other - first) else other - first


def settings_that_differ(infos: list[dict]) -> list[dict]:
    """[{name, values}] of the settings, including seed and profile, that differ between the runs.

    infos: the content of each run's run.json. A missing setting has the value "–".
    """
    settings = [
        {name: info[name] for name in ("profile", "seed") if name in info} | flatten(info.get("config") or {})
        for info in infos
    ]
    names = dict.fromkeys(name for config in settings for name in config if name not in NO_DIFFERENCE)
    shown = {name: [_shown(config[name]) if name in config else "–" for config in settings] for name in names}
    return [{"name": name, "values": values} for name, values in shown.items() if len(set(values)) > 1]


def _shown(value) -> str:
    return f"{value:g}" if type(value) is float else "none" if value is None else str(value)
