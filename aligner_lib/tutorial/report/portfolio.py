"""A learner's portfolio: progress and results of a workspace, as a single HTML page that opens offline.

The page contains no paths, host names or user names, and the learner's name only if the caller passes a name.
"""

from __future__ import annotations

import html
import platform
import time
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.report.answers import evaluation_section
from aligner_lib.tutorial.report.curves import curves_figure
from aligner_lib.tutorial.report.html_page import html_page
from aligner_lib.tutorial.report.progress_table import ProgressTable
from aligner_lib.tutorial.report.stages import stages_table
from aligner_lib.tutorial.workspace.learning_progress import LearningProgress, read_progress
from aligner_lib.tutorial.workspace.results import read_results

VERSIONED = ("aligner-lab", "megatron-core", "torch", "transformers")
RUN_VERSIONS = ("python", *VERSIONED)  # the versions in run.json that the page may show


def write_portfolio(path: str | Path, folder: str | Path, name: str = "") -> Path:
    """Write the portfolio of a workspace and return its path. name: the learner's name; the default title is Portfolio."""
    path = Path(path)
    page = portfolio_page(Path(folder), name)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")  # as JsonlWriter
    return path


def portfolio_page(folder: Path, name: str = "") -> str:
    """The HTML text of the portfolio."""
    runs, title = folder / "runs", "Aligner Lab: portfolio"
    progress = read_progress(folder)
    results, solved = read_results(folder, print, progress.solved_results), progress.solved_runs
    curves, stages = curves_figure(runs, solved), stages_table(results)
    parts = [
        f"<h1>{html.escape(name) or 'Portfolio'}</h1>",
        f'<p class="facts">Aligner Lab: from a language model to an aligned model · {_today()}</p>',
        f'<h2>Progress</h2><div class="wide">{ProgressTable(folder)._repr_html_()}</div>{_passed(progress)}',
        f"<h2>Results</h2>{stages}" if stages else "",
        evaluation_section(results, runs, solved),
        f"<h2>Training curves</h2>{curves}" if curves else "",
        f"<h2>Runs and versions</h2>{_table(_facts(runs, solved))}",
        '<p class="facts">A record of a workspace, made by its owner and examined by no teacher. Exercises, runs and results of solved notebooks do not count and are not shown.</p>',
    ]
    return html_page(title, f'<main class="alone">{"".join(parts)}</main>')


def _today() -> str:
    return time.strftime("%Y-%m-%d")


def _passed(progress: LearningProgress) -> str:
    names = ", ".join(f"<code>{html.escape(name)}</code>" for name in progress.passed)
    return f"<p>Exercises passed: {names}.</p>" if names else ""


def _facts(runs: Path, without: Collection[str]) -> Iterator[tuple[str, str]]:
    """Rows (name, facts) of the table of runs: status, important settings, and versions of packages."""
    versions = {"python": platform.python_version()}
    for kind in ("sft", "rm", "ppo", "dpo", "grpo"):
        run = RunFolder(runs / kind)
        info = run.info
        if not info or kind in without:
            continue
        config = info.get("config", {}).get("model", {})
        facts = [
            f"{run.status}, step {info.get('heartbeat', {}).get('step')}",
            f"learning rate {config['optim']['lr']:g}" if "lr" in config.get("optim", {}) else "",
            f"seed {info['seed']}" if "seed" in info else "",
            f"profile {info['profile']}" if info.get("profile") else "",
            "recorded by the workshop, not trained here" if "recorded" in info else "",
        ]
        yield kind, ", ".join(filter(None, facts))
        versions |= {
            name: info["versions"][name] for name in RUN_VERSIONS if name in info.get("versions", {})
        }
    for package in VERSIONED:
        if package not in versions:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
    yield "versions", ", ".join(f"{package} {version}" for package, version in versions.items())


def _table(rows: Iterator[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{html.escape(a)}</th><td>{html.escape(b)}</td></tr>' for a, b in rows
    )
    return f"<table>{body}</table>"
