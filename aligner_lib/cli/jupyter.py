"""JupyterLab's arguments for `./lab jupyter`: open the first notebook without questions, and list only files for learners."""

from __future__ import annotations

from pathlib import Path

FIRST = "00_start_here.ipynb"
# files in notebooks/ that a learner does not need: sources, scripts and recorded metrics
HIDDEN = ("__pycache__", "src", "*.py", "*.json", "*.toml", "*.pyc", "*~")


def jupyterlab_arguments(notebooks: Path) -> list[str]:
    """Return arguments for `python -m jupyterlab`. The user's arguments follow them and take precedence."""
    return [
        str(notebooks),
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        *(f"--ContentsManager.hide_globs={pattern}" for pattern in HIDDEN),
    ]
