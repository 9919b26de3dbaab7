"""A small site for tests: executed notebooks with each kind of output, and the project's own docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aligner_lib.tutorial.site import build_site

ROOT = Path(__file__).parents[1]


def output(shown: str, **more: str) -> dict:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/plain": shown} | more}


def cell(source: str, *outputs: dict, kind: str = "code") -> dict:
    whole = {"cell_type": kind, "source": source, "metadata": {}, "id": str(abs(hash(source)))}
    return whole | ({"outputs": list(outputs), "execution_count": 1} if kind == "code" else {})


def notebook(*cells: dict) -> str:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


WIDGET = {build_site.WIDGET: "{}"}


def write_tutorial(folder: Path) -> Path:
    """The folder of a tutorial that executed notebook 05, and a run of the bug hunt."""
    (folder / "notebooks").mkdir()
    (folder / "notebooks" / "05_ppo.ipynb").write_text(
        notebook(
            cell("# PPO\n\nOf $\\pi$, see [data](../../docs/data.md) and [a test](../../tests/pages.py).", kind="markdown"),
            cell("display(monitor)", output("Monitor of ppo-drawn (finished)", **WIDGET)),
            cell("display(gone)", output("Monitor of a-run-that-is-gone (finished)", **WIDGET)),
            cell("table", output("a table", **WIDGET, **{"text/html": "<b>static</b>"})),
            cell("slider", output("nothing without a kernel", **WIDGET)),
            cell("print(1)", {"output_type": "stream", "name": "stdout", "text": f"printed\n{folder}/data is formatted\n"}),
            cell('Quiz("05")', output("", **WIDGET)),
        )
    )  # fmt: skip
    (folder / "notebooks" / "10_bug_hunt.ipynb").write_text(
        notebook(
            cell("# The bug hunt", kind="markdown"),
            cell(
                "def hunt(number):\n    ...\n\n\nhunt(1)",
                output("charts", **WIDGET),
                output("responses", **WIDGET),
            ),
        )
    )
    return folder


def build(folder: Path) -> Path:
    """The site of such a tutorial, below the folder. Skips where Sphinx is not installed."""
    pytest.importorskip("myst_nb", reason="`./lab test` installs Sphinx")
    from widgets.share.page import write_page, write_quiz

    tutorial = folder / "tutorial"
    tutorial.mkdir()
    write_tutorial(tutorial)
    return build_site.build(ROOT, tutorial, folder / "site", write_page, write_quiz).parent
