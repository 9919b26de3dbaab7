"""What `./lab jupyter` tells JupyterLab: open the first notebook, ask nothing, and list what a learner opens."""

from __future__ import annotations

from pathlib import Path

FIRST = "00_start_here.ipynb"
# in notebooks/, and of no use to a learner: sources, scripts, and the figures that fill them
HIDDEN = ("__pycache__", "src", "*.py", "*.json", "*.toml", "*.pyc", "*~")


def jupyterlab_arguments(notebooks: Path) -> list[str]:
    """Arguments of `python -m jupyterlab`; those of the user's that follow win."""
    return [
        str(notebooks),
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        *(f"--ContentsManager.hide_globs={pattern}" for pattern in HIDDEN),
    ]
