"""show_source(function) shows the library's source code in a notebook."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[3]
STYLE = """<style>
.lab-source {font: 13px/1.45 var(--jp-code-font-family, ui-monospace, monospace); border-left: 3px solid #8886; padding-left: 12px}
.lab-source p {margin: 0 0 6px; opacity: .75}
.lab-source pre {white-space: pre; overflow-x: auto; margin: 0; background: none; color: inherit}
</style>"""
# colours that are readable on a white and on a black background
TOKENS = {"Keyword": "#a0579b", "Literal.String": "#3f8f5f", "Comment": "#808080", "Name.Function": "#3b82c4"}


@dataclass(frozen=True)
class SourceCode:
    """The code of a function or class, with file and line."""

    where: str
    code: str

    def _repr_html_(self) -> str:
        return f'{STYLE}<div class="lab-source"><p>{escape(self.where)}</p><pre>{_highlighted(self.code)}</pre></div>'

    def __repr__(self) -> str:
        return f"{self.where}\n\n{self.code}"


def show_source(function: Callable) -> SourceCode:
    """The code of a function or a class, with the file and the first line.

    Raises ValueError for an object without Python source, such as a built-in function.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))
    try:
        lines, first = inspect.getsourcelines(function)
        path = Path(inspect.getsourcefile(function))
    except (TypeError, OSError) as error:
        raise ValueError(
            f"{function!r} has no Python source to show: give a function or a class of the library"
        ) from error
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return SourceCode(f"{shown}, line {first}", textwrap.dedent("".join(lines)).rstrip())


def _highlighted(code: str) -> str:
    from pygments.lexers import PythonLexer

    return "".join(_span(str(kind), text) for kind, text in PythonLexer().get_tokens(code)).rstrip()


def _span(kind: str, text: str) -> str:
    for name, colour in TOKENS.items():
        if kind.startswith(f"Token.{name}"):
            return f'<span style="color: {colour}">{escape(text)}</span>'
    return escape(text)
