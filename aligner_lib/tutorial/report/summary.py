"""The first section of the tutorial's report: results of each stage, the evaluation of the policies, and
training curves."""

from __future__ import annotations

import html
from pathlib import Path
from urllib.parse import quote

from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial.comparison.evaluation import KEY
from aligner_lib.tutorial.report.answers import evaluation_section
from aligner_lib.tutorial.report.curves import curves_figure
from aligner_lib.tutorial.report.stages import stages_table

PAGES = "pages"
"""The folder next to the report with a page for each run."""


def summary_section(summary: dict, runs: Path) -> str:
    """The section as HTML. summary: the content of summary.json. runs: the folder with the run folders."""
    seconds = sum(summary.get("seconds", {}).values())
    peak = summary.get("peak_memory_gib", 0.0)
    seeds = {str(own["seed"]): None for own in summary.get("parameters", {}).values() if "seed" in own}
    facts = [
        f"profile {summary['profile']}" if "profile" in summary else "",
        summary.get("model", {}).get("name", ""),
        f"seed {', '.join(seeds)}" if seeds else "",
        f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s" if seconds else "",
        f"largest process {peak:.1f} GiB" if peak else "",
    ]
    failed = (
        f'<p class="failed">Stopped in {html.escape(summary["failed"])}</p>' if "failed" in summary else ""
    )
    curves = curves_figure(runs)
    return "\n".join(
        [
            "<h1>Results</h1>",
            f'<p class="facts">{html.escape(" · ".join(filter(None, facts)))}</p>',
            failed,
            stages_table(summary),
            evaluation_section(summary, runs),
            f"<h2>Training curves</h2>{curves}" if curves else "",
            _links(runs.parent / PAGES),
            f"<details><summary>All figures</summary>{_figures(summary)}</details>",
        ]
    )


def _links(pages: Path) -> str:
    """Links to the runs' pages, the oldest run first; "" without pages."""
    written = sorted(pages.glob("*.html"), key=lambda page: page.stat().st_mtime, reverse=True)
    links = [f'<a href="{PAGES}/{quote(page.name)}">{html.escape(page.stem)}</a>' for page in written]
    return f"<p>Charts and responses of each run: {', '.join(links)}.</p>" if links else ""


def _figures(summary: dict) -> str:
    evaluation = {name: value for name, value in summary.get(KEY, {}).items() if name != "drawn"}
    rows = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in flatten(summary | {KEY: evaluation}).items()
    )
    return f'<div class="wide"><table>{rows}</table></div>'


def _shown(value) -> str:
    if isinstance(value, list):  # a value with its interval
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
