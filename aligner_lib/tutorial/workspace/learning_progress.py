"""What a learner has done in a workspace: exercises passed, quiz questions answered, runs finished.

It lies in `progress.jsonl` of the workspace, one JSON object a line, and is only ever appended to:

    {"time": 1763850000.0, "what": "exercise", "name": "gae", "passed": true}
    {"time": …, "what": "exercise", "name": "masked_loss", "passed": true, "solved": true}
    {"time": …, "what": "answer", "quiz": "03", "question": "stop-token", "choice": 2, "right": false}
    {"time": …, "what": "run", "name": "sft", "kind": "sft"}

"solved" means that a solved notebook ran the exercise, which a learner's own notebook still may.

Several kernels may append at the same time. Whatever reads it imports no torch.
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
SOLVED = "solved"  # the folder of the solved notebooks, in which their kernels start
_workspace: Path | None = None  # of the Workspace that was made last in this process


def note_workspace(folder: Path) -> None:
    """From now on this process records in this workspace; `Workspace` calls it."""
    global _workspace
    _workspace = Path(folder)


def workspace() -> Path | None:
    """The folder of the Workspace that was made last in this process; None before the first."""
    return _workspace


# ---- writing --------------------------------------------------------------------------------------------------------


def record_exercise(name: str, passed: bool) -> None:
    """Note an attempt at an exercise, and whether a solved notebook made it. Without a workspace in this process nothing is noted."""
    solved = {"solved": True} if _in_solved_notebook() else {}
    _note(what="exercise", name=name, passed=bool(passed), **solved)


def record_answer(quiz: str, question: str, choice: int, right: bool) -> None:
    """Note an answer to a quiz's question. choice: its place in the quiz's file, the right one being 0."""
    _note(what="answer", quiz=quiz, question=question, choice=choice, right=bool(right))


def record_finished_runs() -> None:
    """Note the workspace's runs that have finished since this was last called: they may be removed later."""
    if _workspace is None:
        return
    noted = read_progress(_workspace, look_at_runs=False).runs
    for run in reversed(find_runs(_workspace / "runs")):  # the oldest first
        name = run.path.relative_to(_workspace / "runs").as_posix()
        if name not in noted and run.status == "finished":
            _note(what="run", name=name, kind=run.kind)


def _in_solved_notebook() -> bool:
    try:
        return Path.cwd().name == SOLVED
    except FileNotFoundError:  # the folder is gone
        return False


def _note(**record) -> None:
    if _workspace is None:
        return
    try:
        append(_workspace / FILE, {"time": round(time.time(), 3)} | record)
    except OSError as error:  # a full disk takes no part of the lesson away
        warnings.warn(
            f"your progress could not be saved: {_workspace / FILE}: {error.strerror}", stacklevel=3
        )


def append(path: Path, record: dict) -> None:
    """Append a record as one line, in one write, which other processes' lines come before or after.

    A line that a crash or a full disk cut off is ended first: it is lost, the new one is not. Raises OSError when the
    record could not be written whole.
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
    """The answers to one quiz: a question's id → the choices in the order in which they were tried (0: the right one)."""

    answers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def right(self) -> set[str]:
        """The questions that were answered right, at whichever try."""
        return {question for question, tried in self.answers.items() if 0 in tried}

    @property
    def at_first(self) -> set[str]:
        """The questions that were answered right at the first try."""
        return {question for question, tried in self.answers.items() if tried[0] == 0}


@dataclass
class LearningProgress:
    """What `progress.jsonl` and the run folders of a workspace say.

    exercises: name → whether any attempt of the learner's passed. solved: names of exercises that solved notebooks ran. runs: name
    → kind, of runs that finished. damaged: lines that are no records, which are left out.
    """

    exercises: dict[str, bool] = field(default_factory=dict)
    solved: set[str] = field(default_factory=set)
    quizzes: dict[str, QuizResult] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    damaged: int = 0

    @property
    def passed(self) -> list[str]:
        """The exercises that the learner passed, in the order of their first attempts."""
        return [name for name, passed in self.exercises.items() if passed]


def read_progress(folder: str | Path, look_at_runs: bool = True) -> LearningProgress:
    """A workspace's progress; empty where nothing was done yet.

    look_at_runs: also count runs that have finished and were not noted yet, as those of a terminal.
    """
    reader = JsonlReader(Path(folder) / FILE)
    progress = LearningProgress()
    for record in reader.poll():
        if not _take(progress, record):
            progress.damaged += 1
    progress.damaged += reader.skipped
    if look_at_runs:
        for run in reversed(find_runs(Path(folder) / "runs")):
            if run.status == "finished":
                progress.runs.setdefault(run.path.relative_to(Path(folder) / "runs").as_posix(), run.kind)
    return progress


def _take(progress: LearningProgress, record: dict) -> bool:
    """Add a record; False for one that is none of ours."""
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
        case _:
            return False
    return True


def find_workspaces(root: str | Path) -> Iterator[Path]:
    """The folders below `root` that have a progress.jsonl, the one with the newest first."""
    files = sorted(Path(root).glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    return (file.parent for file in files)
