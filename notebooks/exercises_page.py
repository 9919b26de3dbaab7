"""The table of docs/exercises.md, made from the exercises: python notebooks/exercises_page.py."""

from __future__ import annotations

from aligner_lib.config.generated_page import GeneratedPage
from aligner_lib.tutorial.exercises.exercise import Exercise, Mistake
from aligner_lib.tutorial.exercises.registry import exercises

PAGE = GeneratedPage("docs/exercises.md", "notebooks/exercises_page.py")
HEAD = (
    "| notebook | exercise | what it is | minutes | difficulty | mistakes | gradients | trains |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def caught(exercise: Exercise) -> list[Mistake]:
    """The planted mistakes that `check` rejects and calls by their names."""
    from aligner_lib.tutorial.checking.check import judge

    return [mistake for mistake in exercise.mistakes if judge(exercise, mistake.answer).mistake is mistake]


def table() -> str:
    """A row for each exercise, and the sums."""
    recognised = {name: len(caught(exercise)) for name, exercise in exercises().items()}
    rows = [HEAD, *(_row(exercise, recognised[name]) for name, exercise in exercises().items())]
    planted = sum(len(exercise.mistakes) for exercise in exercises().values())
    minutes = sum(exercise.minutes for exercise in exercises().values())
    rows.append(
        f"| | **{len(recognised)}** | | **{minutes}** | | **{sum(recognised.values())}/{planted}** | | |"
    )
    return "\n".join(rows)


def _row(exercise: Exercise, recognised: int) -> str:
    gradients = ", ".join(f"`{name}`" for name in exercise.gradients) or " "
    cells = [exercise.notebook, f"`{exercise.name}`", exercise.title, exercise.minutes, exercise.difficulty]
    trains = "`{}`: `{}`".format(*exercise.trains) if exercise.trains else " "
    cells += [f"{recognised}/{len(exercise.mistakes)}", gradients, trains]
    return f"| {' | '.join(map(str, cells))} |".replace("   ", " ")


if __name__ == "__main__":
    PAGE.update(table())
