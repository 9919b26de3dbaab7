"""The tables of docs/metrics.md, made from the metrics that the kinds of job declare.

`python -m aligner_lib.config.glossary` writes the tables into the page, between its two marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aligner_lib.config.generated_page import GeneratedPage
from aligner_lib.config.kind import Metric, MetricGroup
from aligner_lib.config.kinds import kinds

PAGE = GeneratedPage("docs/metrics.md", "aligner_lib/config/glossary.py")
COLUMNS = ("metric", "unit", "definition", "healthy", "setting")


def glossary() -> str:
    """Return a section for each group of metrics, with the kinds of job that log the metrics. Empty columns are left out."""
    seen: set[tuple[str, str]] = set()
    sections = []
    for group in dict.fromkeys(group for kind in kinds().values() for group in kind.metrics):
        rows = [metric for metric in group.metrics if (group.title, metric.names[0]) not in seen]
        seen |= {(group.title, metric.names[0]) for metric in rows}
        if rows:
            sections.append(_section(group, rows))
    return "\n\n".join(sections)


def _section(group: MetricGroup, metrics: list[Metric]) -> str:
    titles = {
        kind.command: {metric_group.title for metric_group in kind.metrics} for kind in kinds().values()
    }
    users = ", ".join(f"`{command}`" for command, known in titles.items() if group.title in known)
    rows = [_cells(metric) for metric in metrics]
    filled = [index for index in range(len(COLUMNS)) if any(row[index] for row in rows)]
    table = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    lines = [_line(row[index] for index in filled) for row in table]
    return "\n".join([f"## {group.title}", f"Of {users}. {group.text}", "", *lines])


def _cells(metric: Metric) -> list[str]:
    names = ", ".join(f"`{name}`" for name in metric.names)
    cells = [names, metric.unit, metric.definition, metric.healthy, metric.setting]
    return [cell.replace("|", r"\|") for cell in cells]


def _line(cells: Iterable[str]) -> str:
    """A row of the table. Markdown allows the row to omit empty cells at the end."""
    line = "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
    return re.sub(r"( \|)( \|)+$", r"\1", line)


if __name__ == "__main__":
    PAGE.update(glossary())
