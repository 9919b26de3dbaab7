"""A learner's progress: a row for each notebook with exercises, quiz and runs. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aligner_lib.tutorial.exercises.registry import exercises
from aligner_lib.tutorial.hunt.bug_hunt import HUNTED, question_ids
from aligner_lib.tutorial.quiz.quiz_file import FINAL, load_quiz, quiz_names
from aligner_lib.tutorial.workspace.learning_progress import LearningProgress, QuizResult, read_progress

STYLE = """<style>
.lab-progress {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); font-variant-numeric: tabular-nums; border-collapse: collapse}
.lab-progress caption {text-align: left; padding: 2px 10px; opacity: .8}
.lab-progress th, .lab-progress td {text-align: right; white-space: nowrap; padding: 3px 10px; font-weight: 400; border-bottom: 1px solid #8883}
.lab-progress thead th {font-weight: 600}
.lab-progress tbody th, .lab-progress th:first-child {text-align: left}
.lab-progress [aria-current] > * {font-weight: 700; border-bottom-color: currentColor}
.lab-progress progress {width: 8em; height: 10px; accent-color: #2b8cc4}
</style>"""
BUG_HUNT = "10"
COLUMNS = ("notebook", "exercises", "quiz", "runs", "done")


@dataclass(frozen=True)
class Count:
    """A count out of a total."""

    done: int
    of: int

    def __str__(self) -> str:
        return f"{self.done} of {self.of}" if self.of else "–"

    def __add__(self, other: Count) -> Count:
        return Count(self.done + other.done, self.of + other.of)


@dataclass(frozen=True)
class ProgressRow:
    """The progress in a notebook, or in the final quiz."""

    number: str
    """The notebook's number, or "" for the final quiz."""
    title: str
    exercises: Count
    quiz: Count
    """Questions that the learner has answered right."""
    at_first: int
    """Questions that the learner has answered right at the first try."""
    runs: Count

    @property
    def all(self) -> Count:
        """The sum of exercises, questions and runs."""
        return self.exercises + self.quiz + self.runs

    @property
    def name(self) -> str:
        """The number and the title."""
        return f"{self.number} {self.title}".strip()


class ProgressTable:
    """A workspace's progress as rows, as HTML in a notebook, and as text elsewhere."""

    def __init__(self, folder: str | Path):
        self.progress = read_progress(folder)
        self.rows = [_row(*part, self.progress) for part in _parts()]

    @property
    def here(self) -> ProgressRow:
        """The row of the last notebook with any progress, or the next row if the notebook is complete."""
        begun = max((i for i, row in enumerate(self.rows) if row.all.done), default=0)
        complete = self.rows[begun].all.done == self.rows[begun].all.of
        return self.rows[min(begun + complete, len(self.rows) - 1)]

    @property
    def caption(self) -> str:
        """A line with the sums of all rows, what solved notebooks alone ran, and the number of unreadable lines."""
        exercises, quiz, runs = (
            sum((getattr(row, name) for row in self.rows), Count(0, 0))
            for name in ("exercises", "quiz", "runs")
        )
        at_first = sum(row.at_first for row in self.rows)
        only_solved = self.progress.solved - set(self.progress.passed)
        solved_runs = self.progress.solved_runs
        parts = [
            f"exercises {exercises}",
            f"quiz questions {quiz}, {at_first} at the first try",
            f"runs {runs}",
            f"exercises run by solved notebooks alone: {len(only_solved)}" if only_solved else "",
            f"runs started by solved notebooks alone: {len(solved_runs)}" if solved_runs else "",
            f"{self.progress.damaged} damaged lines left out" if self.progress.damaged else "",
        ]
        return " · ".join(filter(None, parts))

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
        body = "".join(map(self._html_row, self.rows))
        return (
            f'{STYLE}<table class="lab-progress"><caption>{escape(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _html_row(self, row: ProgressRow) -> str:
        current = ' aria-current="step"' if row is self.here else ""
        here = " ← you are here" if row is self.here else ""
        bar = f'<progress max="{row.all.of}" value="{row.all.done}" aria-label="{escape(row.name)}: {row.all}"></progress>'
        cells = "".join(f"<td>{cell}</td>" for cell in (row.exercises, row.quiz, row.runs, bar))
        return f'<tr{current}><th scope="row">{escape(row.name)}{here}</th>{cells}</tr>'

    def __repr__(self) -> str:
        lines = [self.caption]
        for row in self.rows:
            here = "  ← you are here" if row is self.here else ""
            counts = f"exercises {row.exercises}, quiz {row.quiz}, runs {row.runs}"
            lines.append(f"  {row.name:22} {counts}{here}")
        return "\n".join(lines)


def _parts() -> Iterator[tuple[str, str, tuple[str, ...], set[str]]]:
    """(notebook, title, runs that the notebook requires, ids of the quiz questions), in order."""
    for name in sorted({*quiz_names(), BUG_HUNT, *(exercise.notebook for exercise in exercises().values())}):
        if name == BUG_HUNT:  # the bug hunt generates its questions from the recordings
            yield name, "The bug hunt", (), {id for run in HUNTED for id in question_ids(run)}
        elif name in quiz_names():
            quiz = load_quiz(name)
            yield name, quiz.title, quiz.runs, {question.id for question in quiz.questions}
        else:
            yield name, "", (), set()  # a notebook's title stands in its quiz


def _row(
    name: str, title: str, runs: tuple[str, ...], question_ids: set[str], progress: LearningProgress
) -> ProgressRow:
    result = progress.quizzes.get(name, QuizResult())
    own = exercises_of(name)
    return ProgressRow(
        number="" if name == FINAL else name,
        title=title,
        exercises=Count(len(own & set(progress.passed)), len(own)),
        quiz=Count(len(result.right & question_ids), len(question_ids)),
        at_first=len(result.at_first & question_ids),
        runs=Count(len(set(runs) & set(progress.runs)), len(runs)),
    )


def exercises_of(notebook: str) -> set[str]:
    """The names of a notebook's exercises."""
    return {name for name, exercise in exercises().items() if exercise.notebook == notebook}
