"""The widgets' JavaScript and styles, joined from the small files in static/.

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

STATIC = Path(__file__).parent / "static"


SHEETS = ("base", "cards", "monitor", "quiz", "classroom")  # the general first


def script(*names: str) -> str:
    """One ES module of static/{name}.js files, which begins by giving the page the widgets' style sheet."""
    files = [(STATIC / f"{name}.js").read_text() for name in ("style", *names)]
    return "\n".join([f"const STYLE_SHEET = {json.dumps(style())};", *files])


def style() -> str:
    """The style sheet of all widgets, joined from static/*.css."""
    return "\n".join((STATIC / f"{name}.css").read_text() for name in SHEETS)


class Widget(anywidget.AnyWidget):
    """A widget that knows which cell of the notebook made it: the one to run again after a restart of the kernel."""

    cell = traitlets.Int(None, allow_none=True).tag(sync=True)  # None outside of a notebook

    @traitlets.default("cell")
    def _this_cell(self) -> int | None:
        from IPython import get_ipython

        shell = get_ipython()
        # the inputs so far, from In[0]; `execution_count` is of the next cell in some versions
        return len(shell.user_ns["In"]) - 1 if shell is not None else None
