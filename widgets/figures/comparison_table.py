"""A static table for comparing the numbers and settings of several runs."""

from __future__ import annotations

from widgets.frontend.table import Table
from widgets.runs.comparison import compare
from widgets.runs.feed import open_feed
from widgets.runs.series import as_runs, distinct_names


def compare_runs(runs, metrics: list | None = None) -> Table:
    """A table of several runs: last values, differences from the first run, and differing settings.

    metrics: as for `curves`. Raises ValueError for fewer than two runs.
    """
    runs = as_runs(runs)
    if len(runs) < 2:
        raise ValueError(f"compare_runs([{runs[0].name}]): give two runs or more")
    feed = open_feed(runs, metrics)
    comparison = compare(feed.runs, feed.series, feed.charts)
    names = distinct_names(runs)
    reached = [f"{name}, step {step}" for name, step in zip(names, comparison["steps"])]
    columns = ["", *reached, *(f"{name} − {names[0]}" for name in names[1:])]
    rows = [
        [
            f"{row['label']} ({row['unit']})" if row["unit"] else row["label"],
            *row["values"],
            *row["differences"],
        ]
        for row in comparison["values"]
    ]
    rows += [[row["name"], *row["values"], *[None] * (len(runs) - 1)] for row in comparison["settings"]]
    return Table(f"Last values and settings that differ: {', '.join(names)}", columns, rows)
