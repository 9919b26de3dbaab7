"""The widgets' JavaScript and styles, joined from the small files next to the Python modules.

A widget's script is a single ES module. The joined files have a common scope and therefore no imports. The files run in the
order of their names in `script`, and the last file exports the widget.

All widgets have a common style sheet, which their scripts add to the page once. With anywidget's `_css`, each widget class
would add a separate sheet, and the last sheet would override the styles of the others.
"""

from __future__ import annotations

import json
from pathlib import Path

import anywidget
import traitlets

FOLDERS = Path(__file__).parents[1]

SHEETS = ("base", "cards", "monitor", "quiz", "classroom")  # general styles first


def script(*names: str) -> str:
    """Join the files {name}.js into an ES module. The module first adds the widgets' style sheet to the page."""
    files = [text_of(f"{name}.js") for name in ("style", *names)]
    return "\n".join([f"const STYLE_SHEET = {json.dumps(style())};", *files])


def style() -> str:
    """The style sheet of all widgets, joined from the CSS files."""
    return "\n".join(text_of(f"{name}.css") for name in SHEETS)


def text_of(name: str) -> str:
    """The text of a script or style sheet. File names are unique among the folders of the widgets."""
    [path] = FOLDERS.glob(f"*/{name}")
    return path.read_text()


class Widget(anywidget.AnyWidget):
    """The base class of all widgets. `cell` tells the reader which cell to run again after a restart of the kernel."""

    cell = traitlets.Int(None, allow_none=True).tag(sync=True)
    """The number of the cell that created the widget; None outside of a notebook."""

    @traitlets.default("cell")
    def _this_cell(self) -> int | None:
        from IPython import get_ipython

        shell = get_ipython()
        # `In` has an entry for each executed cell and starts at In[0]; `execution_count` is the next cell's in some versions
        return len(shell.user_ns["In"]) - 1 if shell is not None else None
