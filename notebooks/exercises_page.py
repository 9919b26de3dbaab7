"""The table of docs/exercises.md, made from the exercises: python notebooks/exercises_page.py."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.tutorial.exercises.exercise import Exercise, Mistake
from aligner_lib.tutorial.exercises.registry import exercises

PAGE = Path(__file__).parents[1] / "docs" / "exercises.md"
BEGIN, END = "<!-- made by notebooks/exercises_page.py: -->", "<!-- until here -->"
HEAD = (
    "| notebook | exercise | what it is | minutes | difficulty | mistakes | recognised | gradients | trains |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def caught(asked: Exercise, seed: int = 0) -> list[Mistake]:
    """The planted mistakes that `check` rejects and calls by their names."""
    from aligner_lib.tutorial.checking.check import judge

    return [mistake for mistake in asked.mistakes if judge(asked, mistake.answer, seed).mistake is mistake]


def table() -> str:
    """A row for each exercise, and the sums."""
    found = {name: len(caught(one)) for name, one in exercises().items()}
    rows = [HEAD, *(_row(one, found[name]) for name, one in exercises().items())]
    planted = sum(len(one.mistakes) for one in exercises().values())
    minutes = sum(one.minutes for one in exercises().values())
    rows.append(f"| | **{len(found)}** | | **{minutes}** | | **{planted}** | **{sum(found.values())}** | | |")
    return "\n".join(rows)


def _row(one: Exercise, found: int) -> str:
    gradients = ", ".join(f"`{name}`" for name in one.gradients) or " "
    cells = [one.notebook, f"`{one.name}`", one.title, one.minutes, one.difficulty]
    trains = "`{}`: `{}`".format(*one.trains) if one.trains else " "
    cells += [len(one.mistakes), found, gradients, trains]
    return f"| {' | '.join(map(str, cells))} |".replace("   ", " ")


def page_with(text: str, page: str) -> str:
    """The page's text with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table(), PAGE.read_text()))
