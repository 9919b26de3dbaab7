"""A learner's progress in a workspace: passed exercises, answered quiz questions, finished runs.

The progress is stored in `progress.jsonl` of the workspace, with a JSON object per line. Lines are only appended:

    {"time": 1763850000.0, "what": "exercise", "name": "gae", "passed": true}
    {"time": …, "what": "exercise", "name": "masked_loss", "passed": true, "solved": true}
    {"time": …, "what": "answer", "quiz": "03", "question": "stop-token", "choice": 2, "right": false}
    {"time": …, "what": "run", "name": "sft", "kind": "sft"}
    {"time": …, "what": "attack", "hacks": 2, "first_minutes": 3.1}

Further records are `start` with the name of a started run, and `results` with the number of a notebook.
"solved": a solved notebook ran the exercise, started the run, wrote the results or attacked the judge. The line does not count for
the learner, whose own notebook can still pass the exercise or start the run.

Several kernels may append at the same time. Reading needs no torch.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.reader import find_runs

FILE = "progress.jsonl"
SOLVED = "solved"  # the folder of the solved notebooks, and usually the working directory of their kernels
_workspace: Path | None = None  # the folder of the newest Workspace in this process
_is_solved = False  # whether a solved notebook opened the newest Workspace


def note_workspace(folder: Path, solved: bool = False) -> None:
    """Set the folder in which this process records progress, and whether a solved notebook runs. Called by `Workspace`."""
    global _workspace, _is_solved
    _workspace, _is_solved = Path(folder), solved


def workspace() -> Path | None:
    """The folder of the newest Workspace in this process; None without a Workspace."""
    return _workspace


# ---- writing --------------------------------------------------------------------------------------------------------


def record_exercise(name: str, passed: bool) -> None:
    """Record an attempt at an exercise, and whether a solved notebook made the attempt. Does nothing without a workspace."""
    _note(what="exercise", name=name, passed=bool(passed), **_solved())


def record_answer(quiz: str, question: str, choice: int, right: bool) -> None:
    """Record an answer to a quiz question. choice: the position of the answer in the quiz file; 0 is the right answer."""
    _note(what="answer", quiz=quiz, question=question, choice=choice, right=bool(right))


def record_attack(hacks: int, first_minutes: float | None) -> None:
    """Record the number of hacks of the learner's own judge in notebook 12. first_minutes: minutes to the first hack; None without a hack."""
    _note(what="attack", hacks=hacks, first_minutes=first_minutes, **_solved())


def record_start(name: str) -> None:
    """Record the start of a run by a notebook."""
    _note(what="start", name=name, **_solved())


def record_results(number: str) -> None:
    """Record the author of the results of a notebook: the learner, or a solved notebook."""
    _note(what="results", name=number, **_solved())


def record_finished_runs() -> None:
    """Record the workspace's runs that have finished since the last call. A record outlives the deletion of the run folder."""
    if _workspace is None:
        return
    progress = read_progress(_workspace, look_at_runs=False)
    noted = progress.runs.keys() | progress.solved_runs
    for run in reversed(find_runs(_workspace / "runs")):  # the oldest run first
        name = run.path.relative_to(_workspace / "runs").as_posix()
        if name not in noted and run.status == "finished":
            _note(what="run", name=name, kind=run.kind)


def _solved() -> dict[str, bool]:
    """The mark of records by solved notebooks; {} in a notebook of the learner."""
    try:
        return {"solved": True} if _is_solved or Path.cwd().name == SOLVED else {}
    except FileNotFoundError:  # the working directory was deleted
        return {}


def _note(**record) -> None:
    if _workspace is None:
        return
    try:
        _workspace.mkdir(parents=True, exist_ok=True)  # the learner may have removed the folder to begin anew
        append(_workspace / FILE, {"time": round(time.time(), 3)} | record)
    except OSError as error:  # a full disk must not interrupt the lesson
        warnings.warn(
            f"your progress could not be saved: {_workspace / FILE}: {error.strerror}", stacklevel=3
        )


def append(path: Path, record: dict) -> None:
    """Append a record as a line, in a single write, so that lines of several processes never mix.

    After an incomplete last line, left by a crash or a full disk, the new record still starts on a new line. Raises OSError if the
    record could not be written completely.
    """
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if written < len(line):
        raise OSError(None, f"only {written} of {len(line)} bytes could be written", str(path))


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass
class QuizResult:
    """A learner's answers to a quiz."""

    answers: dict[str, list[int]] = field(default_factory=dict)
    """Id of a question → the chosen answers, in order. 0 is the right answer."""

    @property
    def right(self) -> set[str]:
        """The questions that the learner has answered right, at any try."""
        return {question for question, tried in self.answers.items() if 0 in tried}

    @property
    def at_first(self) -> set[str]:
        """The questions that the learner answered right at the first try."""
        return {question for question, tried in self.answers.items() if tried[0] == 0}


@dataclass
class LearningProgress:
    """The progress in `progress.jsonl` and in the run folders of a workspace."""

    exercises: dict[str, bool] = field(default_factory=dict)
    """Name → whether any attempt of the learner passed."""
    solved: set[str] = field(default_factory=set)
    """Names of exercises that solved notebooks ran."""
    quizzes: dict[str, QuizResult] = field(default_factory=dict)
    """By the quiz's name."""
    runs: dict[str, str] = field(default_factory=dict)
    """Name → kind of each finished run, without the runs started by solved notebooks alone."""
    starts: dict[str, bool] = field(default_factory=dict)
    """Name of a run → whether solved notebooks alone started it."""
    results: dict[str, bool] = field(default_factory=dict)
    """Number of a notebook → whether the solved notebook wrote the present results."""
    damaged: int = 0
    """The number of unreadable lines, which are ignored."""

    @property
    def passed(self) -> list[str]:
        """The exercises that the learner passed, in the order of their first attempts."""
        return [name for name, passed in self.exercises.items() if passed]

    @property
    def solved_runs(self) -> set[str]:
        """The names of the runs started by solved notebooks alone."""
        return {name for name, solved in self.starts.items() if solved} - self.runs.keys()

    @property
    def solved_results(self) -> set[str]:
        """The numbers of the notebooks whose present results are of the solved notebook."""
        return {number for number, solved in self.results.items() if solved}


def read_progress(folder: str | Path, look_at_runs: bool = True) -> LearningProgress:
    """The progress of a workspace; empty without any records.

    look_at_runs: also count finished runs without a record, such as runs from a terminal.
    """
    reader = JsonlReader(Path(folder) / FILE)
    progress = LearningProgress()
    for record in reader.poll():
        if not _take(progress, record):
            progress.damaged += 1
    progress.damaged += reader.skipped
    if look_at_runs:
        for run in reversed(find_runs(Path(folder) / "runs")):
            name = run.path.relative_to(Path(folder) / "runs").as_posix()
            if run.status == "finished" and name not in progress.solved_runs:
                progress.runs.setdefault(name, run.kind)
    return progress


def _take(progress: LearningProgress, record: dict) -> bool:
    """Add a record of progress.jsonl. Returns False for an unknown record."""
    match record:
        case {"what": "exercise", "name": str(name), "solved": True}:
            progress.solved.add(name)
        case {"what": "exercise", "name": str(name), "passed": bool(passed)}:
            progress.exercises[name] = passed or progress.exercises.get(name, False)
        case {"what": "answer", "quiz": str(quiz), "question": str(question), "choice": int(choice)}:
            result = progress.quizzes.setdefault(quiz, QuizResult())
            result.answers.setdefault(question, []).append(choice)
        case {"what": "run", "name": str(name), "kind": str(kind)}:
            progress.runs[name] = kind
        case {"what": "start", "name": str(name)}:
            progress.starts[name] = progress.starts.get(name, True) and "solved" in record
        case {"what": "results", "name": str(number)}:
            progress.results[number] = "solved" in record
        case {"what": "attack"}:
            pass  # for the classroom
        case _:
            return False
    return True


def find_workspaces(root: str | Path) -> Iterator[Path]:
    """The folders in `root` with a progress.jsonl, the most recently changed first."""
    files = sorted(Path(root).glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    return (file.parent for file in files)
