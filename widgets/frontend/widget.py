"""The widgets' JavaScript and styles, joined from the small files beside their Python.

A widget's script is one ES module. Its files share a scope, so they import nothing from each other: they run
in the order in which they are named, and the last one exports the widget.

All widgets have one style sheet, which their scripts put into the page once. With anywidget's `_css` each class of
widgets would add a sheet of its own, and the one that came last would decide what the others look like.
"""

from __future__ import annotations

import json
from pathlib import Path

import anywidget
import traitlets

FOLDERS = Path(__file__).parents[1]

SHEETS = ("base", "cards", "monitor", "quiz", "classroom")  # the general first


def script(*names: str) -> str:
    """One ES module of the files {name}.js, which begins by giving the page the widgets' style sheet."""
    files = [text_of(f"{name}.js") for name in ("style", *names)]
    return "\n".join([f"const STYLE_SHEET = {json.dumps(style())};", *files])


def style() -> str:
    """The style sheet of all widgets, joined from their files."""
    return "\n".join(text_of(f"{name}.css") for name in SHEETS)


def text_of(name: str) -> str:
    """The text of a script or style sheet of the widgets. Its name is unique among the widgets' folders."""
    [path] = FOLDERS.glob(f"*/{name}")
    return path.read_text()


class Widget(anywidget.AnyWidget):
    """A widget that knows which cell of the notebook made it: the one to run again after a restart of the kernel."""

    cell = traitlets.Int(None, allow_none=True).tag(sync=True)  # None outside of a notebook

    @traitlets.default("cell")
    def _this_cell(self) -> int | None:
        from IPython import get_ipython

        shell = get_ipython()
        # the inputs so far, from In[0]; `execution_count` is of the next cell in some versions
        return len(shell.user_ns["In"]) - 1 if shell is not None else None
