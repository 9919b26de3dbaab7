"""Static tables for notebooks: HTML, with a plain-text version. All texts of models are escaped."""

from __future__ import annotations

from html import escape

from aligner_lib.run_folder.turns import turns_of

# JupyterLab has CSS rules for tables (fixed layout, right-aligned) with two or more classes. The repeated class outranks them.
STYLE = """<style>
.lab-table.lab-table.lab-table {table-layout: auto; border-collapse: collapse; width: auto; max-width: 100%; margin: 0 0 1em; font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); font-variant-numeric: tabular-nums}
.lab-table.lab-table.lab-table caption {text-align: left; caption-side: top; padding: 4px 8px; opacity: .75; max-width: none}
.lab-table.lab-table.lab-table th {text-align: left; vertical-align: bottom; font-weight: 600; padding: 4px 8px; border-bottom: 1px solid #8888}
.lab-table.lab-table.lab-table td {text-align: left; vertical-align: top; line-height: 1.5; padding: 6px 8px; border-bottom: 1px solid #8883}
.lab-table.lab-table.lab-table .lab-text {text-align: start; white-space: pre-wrap; overflow-wrap: break-word; max-width: 60ch}
.lab-table.lab-table.lab-table .lab-long {min-width: 16em}
.lab-table.lab-table.lab-table .lab-turn {margin: 0 0 4px}
.lab-table.lab-table.lab-table .lab-turn small, .lab-table.lab-table.lab-table .lab-turn summary {font-size: 11px; opacity: .75}
.lab-table.lab-table.lab-table .lab-number {text-align: right; white-space: nowrap}
</style>"""
# MathJax in JupyterLab and nbconvert ignores elements with these classes, because "$5 … $10" is not a formula
NO_MATH = "mathjax_ignore tex2jax_ignore"
LONG = 40  # a cell with more characters gets a wide column


class PromptCell(str):
    """A table cell with the turns of a prompt, without the chat template's tokens. In plain text, each turn is a line.

    most_characters: the length to which turns are cut. In HTML, the system turn is collapsed.
    """

    def __new__(cls, prompt: str, most_characters: int | None = None):
        turns = [(turn["role"], shortened(turn["text"], most_characters)) for turn in turns_of(prompt)]
        self = super().__new__(cls, "\n".join(f"{role}: {text}" if role else text for role, text in turns))
        self.turns = turns
        return self

    def html(self) -> str:
        """The turns as HTML."""
        return "".join(_turn(role, text) for role, text in self.turns)


def _turn(role: str, text: str) -> str:
    words = f'<div dir="auto">{escape(text)}</div>'
    if role == "system":
        return f'<details class="lab-turn"><summary>system</summary>{words}</details>'
    return f'<div class="lab-turn">{f"<small>{role}</small>" if role else ""}{words}</div>'


class Table:
    """An HTML table with a plain-text version."""

    def __init__(self, caption: str, columns: list[str], rows: list[list]):
        self.caption, self.columns, self.rows = caption, columns, rows

    def _repr_html_(self) -> str:
        head = "".join(map(_heading, self.columns, self._are_numbers()))
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        caption = f"<caption>{escape(self.caption)}</caption>"
        table = f'<table class="lab-table {NO_MATH}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return STYLE + table

    def _are_numbers(self) -> list[bool]:
        """For each column, whether all cells are numbers or empty."""
        return [all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))]

    def __repr__(self) -> str:
        lines = [self.caption]
        for row in self.rows:
            lines += [f"  {column}: {_shown(value)}" for column, value in zip(self.columns, row)] + [""]
        return "\n".join(lines)


class Tabled:
    """A widget with a static table for pages without widgets, such as a report, GitHub or an executed notebook."""

    def table(self) -> Table:
        """The current content of the widget as a table. Subclasses override this method."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return data | {"text/html": self.table()._repr_html_()}, metadata


def _heading(column: str, of_numbers: bool) -> str:
    alignment = ' class="lab-number"' if of_numbers else ""
    return f'<th scope="col" dir="auto"{alignment}>{escape(column)}</th>'


def _cell(value) -> str:
    if value is None:
        return "<td></td>"
    text = _shown(value)
    if isinstance(value, int | float):
        return f'<td class="lab-number">{text}</td>'
    content = value.html() if isinstance(value, PromptCell) else escape(text)
    return f'<td class="lab-text{" lab-long" * (len(text) > LONG)}" dir="auto">{content}</td>'


def _shown(value) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if 0 < abs(value) < 0.1 else f"{value:.3f}"
    return str(value)


def shortened(text: str, most: int | None) -> str:
    """Cut a text to at most `most` characters, followed by an ellipsis. most: None for the whole text."""
    return text if most is None or len(text) <= most else text[:most].rstrip() + " …"
