"""The display of a verdict in a notebook, light or dark, and on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from aligner_lib.tutorial.exercises.exercise import Exercise, Mistake
from aligner_lib.tutorial.mistakes.drawing import drawing
from aligner_lib.tutorial.mistakes.evidence import MistakenRun
from aligner_lib.tutorial.mistakes.recorded import mistaken_run
from aligner_lib.tutorial.report.html_page import with_code

if TYPE_CHECKING:
    from aligner_lib.tutorial.exercises.outcome import Difference

PASSED, NOT_YET, WRONG = "passed", "not yet", "not right yet"
MARKS = {PASSED: "✓", NOT_YET: "○", WRONG: "✗"}
COLOURS = {PASSED: "#009E73", NOT_YET: "#8888", WRONG: "#D55E00"}
MOST_ROWS, MOST_COLUMNS = 6, 10
MOST_ROWS_OF_AN_INPUT = 3  # in a text, which has no part to unfold
# A wrong number has a coloured background and an underline, so that readers who see no colours can find the number, too.
# The selectors repeat the class, because JupyterLab has CSS rules for tables and texts with the specificity of a single class.
STYLE = """<style>
.lab-check {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); border-left: 3px solid; padding: 2px 0 2px 12px; max-width: 60rem}
.lab-check.lab-check p {margin: 2px 0 6px; color: var(--jp-content-font-color1, inherit)}
.lab-check.lab-check b {font-weight: 600}
.lab-check.lab-check table {border-collapse: collapse; font-variant-numeric: tabular-nums; color: var(--jp-content-font-color1, inherit)}
.lab-check.lab-check th, .lab-check.lab-check td {text-align: left; vertical-align: top; font-weight: 400; padding: 2px 16px 2px 0; border: 0}
.lab-check.lab-check tr:nth-child(n) {background: none}
.lab-check.lab-check th, .lab-check.lab-check caption {opacity: .75}
.lab-check.lab-check caption {text-align: left; white-space: nowrap}
.lab-check.lab-check pre {font: 12px/1.4 var(--jp-code-font-family, ui-monospace, monospace); margin: 0; background: none; color: inherit; white-space: pre}
.lab-check.lab-check u {background: rgba(213, 94, 0, .25); text-decoration-color: #D55E00; text-underline-offset: 2px}
.lab-check.lab-check summary {cursor: pointer; opacity: .75}
.lab-check.lab-check summary.trained {display: inline-block; opacity: 1; border: 1px solid #8888; border-radius: 4px; padding: 1px 10px; margin: 0 0 6px}
</style>"""


@dataclass(frozen=True)
class ExerciseVerdict:
    """The result of a check: whether the learner's function is right, and otherwise the first difference."""

    exercise: Exercise
    status: str
    """PASSED, NOT_YET or WRONG."""
    sentence: str
    mistake: Mistake | None = None
    """The planted mistake that the function equals."""
    difference: Difference | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    """Inputs of the first failed case."""
    function: Callable | None = None
    """The function that the notebook continues with: the learner's if that passed, else the reference."""

    def __post_init__(self):
        if self.function is None:
            object.__setattr__(self, "function", self.exercise.reference)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def passed(self) -> bool:
        """Whether the function is right."""
        return self.status == PASSED

    @property
    def headline(self) -> str:
        """The mark, the exercise and the status."""
        return f"{MARKS[self.status]} {self.exercise.name}: {self.status}"

    def _repr_html_(self) -> str:
        named = f"<p><b>{escape(self.mistake_in_words)}</b></p>" if self.mistake else ""
        colour = f"border-color: {COLOURS[self.status]}"
        return (
            f'{STYLE}<div class="lab-check" role="status" style="{colour}"><p><b>{escape(self.headline)}</b>. '
            f"{escape(self._sentence)}</p>{named}{self._trained()}{self._tables()}</div>"
        )

    def __repr__(self) -> str:
        lines = [f"{self.headline}. {self._sentence}"]
        if self.mistake:
            lines.append(self.mistake_in_words)
        if self.training:
            lines.append(f"Trained with this mistake: {self.training.sentence}")
        if self.difference and self.difference.expected is not None:
            for who, value in (("yours", self.difference.yours), ("expected", self.difference.expected)):
                lines += [f"{who}: {_kind(value)}", *(f"    {line}" for line in _plain(value))]
        if self.inputs:
            lines.append("the input of the failed case:")
            lines += [line for name, value in self.inputs.items() for line in _named(name, value)]
        return "\n".join(lines)

    @property
    def _sentence(self) -> str:
        """The sentence with a capital letter, unless it begins with a variable's name."""
        name = self.difference.what if self.difference else ""
        if name.isidentifier() and self.sentence.startswith((f"{name} ", f"{name}[")):
            return self.sentence
        return _capital(self.sentence)

    @property
    def mistake_in_words(self) -> str:
        """The planted mistake's name and meaning."""
        return f"{_capital(self.mistake.name.replace('_', ' '))}: {self.mistake.meaning}"

    @property
    def training(self) -> MistakenRun | None:
        """The recorded run with the named mistake; None if there is none."""
        return mistaken_run(self.exercise.name, self.mistake.name) if self.mistake else None

    def _trained(self) -> str:
        if not (run := self.training):
            return ""
        what = f"{run.steps} steps of `aligner {run.kind}` with the smallest model. {run.sentence}"
        return (
            '<details><summary class="trained">Train with this mistake</summary>'
            f"<p>{with_code(what)}</p>{drawing(run)}</details>"
        )

    def _tables(self) -> str:
        if not self.difference or self.difference.expected is None:
            return self._inputs()
        yours, expected = self.difference.yours, self.difference.expected
        rows = "".join(
            f'<tr><th scope="row">{who}</th><td>{escape(_kind(value))}<pre>{_marked(value, other)}</pre></td></tr>'
            for who, value, other in (("yours", yours, expected), ("expected", expected, yours))
        )
        what = escape(self.difference.what)
        return f"<table><caption>{what}</caption>{rows}</table>{self._inputs()}"

    def _inputs(self) -> str:
        if not self.inputs:
            return ""
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(_kind(value))}'
            f"<pre>{escape(chr(10).join(_plain(value)))}</pre></td></tr>"
            for name, value in self.inputs.items()
        )
        return f"<details><summary>the input of the failed case</summary><table>{rows}</table></details>"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _kind(value: Any) -> str:
    """The dtype and shape of a tensor, or the name of a value's type."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _plain(value: Any) -> list[str]:
    return ["  ".join(text for text, _ in row) for row in _cells(value, None)]


def _named(name: str, value: Any) -> list[str]:
    """An input as text: a line with its value, or a line with its kind and the rows below."""
    if isinstance(value, str):
        return [f"    {name}: {_short(repr(value))}"]  # quoted, so that spaces and line ends are visible
    rows = _plain(value)
    if len(rows) == 1:
        return [f"    {name}: {' '.join(rows[0].split())}"]  # a model's text has several lines
    if len(rows) > MOST_ROWS_OF_AN_INPUT:
        rows = [*rows[:MOST_ROWS_OF_AN_INPUT], "…"]
    return [f"    {name}: {_kind(value)}", *(f"        {row}" for row in rows)]


def _marked(value: Any, other: Any) -> str:
    from aligner_lib.tutorial.exercises.outcome import differs

    where = differs(value, other)
    return "\n".join(
        "  ".join(f"<u>{escape(text)}</u>" if wrong else escape(text) for text, wrong in row)
        for row in _cells(value, where)
    )


def _cells(value: Any, wrong: Any) -> list[list[tuple[str, bool]]]:
    """The first rows and columns of a value. A cell has a number as text, padded to equal width, and whether it is wrong."""
    import torch

    if isinstance(value, list | tuple) and value and all(_is_a_number(part) for part in value):
        value = torch.stack([part.detach() for part in value])
    if isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor) for part in value):
        return [row for part in value for row in [*_cells(part, None), [("", False)]]][:-1]
    if not isinstance(value, torch.Tensor):
        return [[(_short(value), wrong is not None and bool(wrong.any()))]]
    if not value.numel():
        return [[("(no elements)", False)]]
    value = value.detach()
    if not value.ndim:
        value = value[None]
    rows = value.reshape(-1, value.shape[-1])[:MOST_ROWS, :MOST_COLUMNS]
    marks = torch.zeros_like(value, dtype=torch.bool) if wrong is None else wrong.expand_as(value)
    marks = marks.reshape(-1, value.shape[-1])[:MOST_ROWS, :MOST_COLUMNS]
    texts = [[_number(number) for number in row] for row in rows.tolist()]
    width = max((len(text) for row in texts for text in row), default=0)
    more = [("…", False)] if value.shape[-1] > MOST_COLUMNS else []
    shown = [
        [(text.rjust(width), mark) for text, mark in zip(row, of_row)] + more
        for row, of_row in zip(texts, marks.tolist())
    ]
    return shown + ([[("…", False)]] if value.numel() > value.shape[-1] * MOST_ROWS else [])


def _is_a_number(value: Any) -> bool:
    """Whether a value is a tensor without dimensions."""
    return getattr(value, "shape", None) == () and hasattr(value, "detach")


def _number(number: float | int | bool) -> str:
    # + 0.0 turns -0.0 into 0.0
    return f"{number + 0.0:.4g}" if isinstance(number, float) else str(int(number))


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else text[:200].rstrip() + " …"
