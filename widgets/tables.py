"""Completions as static tables, which stay in a notebook.

Everything that a model wrote is escaped: markup shows as text.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from widgets.series import as_run
from widgets.turns import turns_of

# JupyterLab sets tables in a fixed layout and to the right, with rules of two classes and more: hence the repeated one
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
# MathJax, as JupyterLab and nbconvert load it, leaves alone what has one of these classes: "$5 … $10" is no formula
NO_MATH = "mathjax_ignore tex2jax_ignore"
LONG = 40  # characters of a cell that wants a wide column
ORDERS: dict[str, tuple[str, int]] = {  # by which figure, and which end comes first; what has none comes last
    "reward": ("reward", -1),
    "worst": ("reward", 1),
    "kl": ("kl", -1),
    "length": ("length", -1),
    "": ("", 1),
}


class Prompt(str):
    """A prompt's cell in a table: its turns in place of its chat template, each on a line of its own in plain text.

    most_characters: longer turns are cut. In HTML the system's turn is folded.
    """

    def __new__(cls, prompt: str, most_characters: int | None = None):
        turns = [(turn["role"], _short(turn["text"], most_characters)) for turn in turns_of(prompt)]
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
        """Of each column, whether all its cells are numbers or empty."""
        return [all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))]

    def __repr__(self) -> str:
        lines = [self.caption]
        for row in self.rows:
            lines += [f"  {column}: {value}" for column, value in zip(self.columns, row)] + [""]
        return "\n".join(lines)


class Tabled:
    """A widget with a static table, for pages without widgets: a report, GitHub, an executed notebook."""

    def table(self) -> Table:
        """What the widget shows now, as a table; subclasses define it."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return data | {"text/html": self.table()._repr_html_()}, metadata


def show_completions(
    run,
    *,
    step: int | None = None,
    n: int = 6,
    sort: str = "",
    split: str | None = None,
    most_characters: int = 600,
) -> Table:
    """A table of n completions of a run: prompt, response, reward, KL, length.

    step: by default the last one that has rollouts. sort: `reward` (best first), `worst`, `kl`, `length`, or
    "" for the order in the file. split: `train`, `validation`, or "" for both; by default validation, where
    the run has any. most_characters: longer responses, and longer turns of
    a prompt, are cut. Raises ValueError for a step without rollouts or an
    unknown order.
    """
    if split is None:
        split = "validation" if completions(run, None, "validation") else ""
    records = completions(run, step, split)
    records = sorted(records, key=_order(sort))[:n]
    name = _name(run)
    prompts = f", prompts of {split}" if split else ""
    caption = f"{name}, step {records[0]['step']}{prompts}" if records else f"{name}: no completions"
    return table_of(records, caption, most_characters)


def table_of(records: list[dict], caption: str, most_characters: int = 600) -> Table:
    """A table of rollout records. What none of them has, such as the KL of a validation, has no column."""
    columns = {
        "prompt": [Prompt(record["prompt"], most_characters) for record in records],
        "response": [_short(record["response"], most_characters) for record in records],
        "reward": [reward_of(record) for record in records],
        "advantage": [record.get("advantage") for record in records],
        "KL": [record.get("kl") for record in records],
        "tokens": [_tokens(record) for record in records],
    }
    columns = {
        name: cells
        for name, cells in columns.items()
        if name in ("prompt", "response") or any(c is not None for c in cells)
    }
    return Table(caption, list(columns), [list(row) for row in zip(*columns.values())])


def compare_completions(
    a, b, *, step: int | None = None, n: int = 6, sort: str = "", most_characters: int = 600
) -> Table:
    """The responses of two runs to the same prompts, side by side, each with its reward.

    step: of both runs; by default the last of each. sort: `gain` orders by b's reward minus a's, largest
    first.
    """
    of_b = {}
    for record in completions(b, step):
        of_b.setdefault(record["prompt"], record)
    pairs = [(r, of_b.pop(r["prompt"])) for r in completions(a, step) if r["prompt"] in of_b]
    if sort == "gain":
        pairs.sort(key=_gain)
    else:
        pairs.sort(key=lambda pair: _order(sort)(pair[1]))
    rows = [
        [Prompt(x["prompt"], most_characters)]
        + [cell for one in (x, y) for cell in (_short(one["response"], most_characters), reward_of(one))]
        for x, y in pairs[:n]
    ]
    caption = f"{len(rows)} of {len(pairs)} prompts that both runs answered"
    return Table(caption, ["prompt", _name(a), "reward", _name(b), "reward"], rows)


def completions(run, step: int | None = None, split: str = "") -> list[dict]:
    """The rollout records of a step (by default the last one that has any).

    Raises ValueError for a step without rollouts.
    """
    records = [r for r in as_run(run).rollouts() if not split or r.get("split") == split]
    if not records:
        return []
    steps = sorted({record["step"] for record in records})
    step = steps[-1] if step is None else step
    if step not in steps:
        raise ValueError(f"{_name(run)} has no completions of step {step}; it has those of {steps}")
    return [record for record in records if record["step"] == step]


def _order(sort: str) -> Callable:
    if sort not in ORDERS:
        raise ValueError(f"sort={sort!r}; completions sort by {', '.join(filter(None, ORDERS))}")
    name, sign = ORDERS[sort]
    return lambda record: _last_without(record.get(name), sign)


def _last_without(figure: float | None, sign: int) -> tuple[bool, float]:
    return (figure is None, sign * (figure or 0.0))


def _gain(pair: tuple[dict, dict]) -> tuple[bool, float]:
    before, after = (record.get("reward") for record in pair)
    return _last_without(None if None in (before, after) else after - before, -1)


def reward_of(record: dict) -> float | str | None:
    """The reward, or why there is none: the environment failed."""
    return f"failed: {record['failure'].replace('_', ' ')}" if "failure" in record else record.get("reward")


def _tokens(record: dict) -> int | str | None:
    length = record.get("length")
    return length if record.get("finished", True) else f"{length}, cut off"


def _heading(column: str, of_numbers: bool) -> str:
    alignment = ' class="lab-number"' if of_numbers else ""
    return f'<th scope="col" dir="auto"{alignment}>{escape(column)}</th>'


def _cell(value) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, float):
        return f'<td class="lab-number">{value:.3f}</td>'
    if isinstance(value, int):
        return f'<td class="lab-number">{value}</td>'
    text = str(value)
    content = value.html() if isinstance(value, Prompt) else escape(text)
    return f'<td class="lab-text{" lab-long" * (len(text) > LONG)}" dir="auto">{content}</td>'


def _short(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else text[:most].rstrip() + " …"


def _name(run) -> str:
    return as_run(run).name
