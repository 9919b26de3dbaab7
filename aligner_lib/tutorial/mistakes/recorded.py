"""The recorded runs with the planted mistakes, in `trained.jsonl`. `python notebooks/record.py --mistakes` writes the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from aligner_lib.config.functions import LibraryFunction
from aligner_lib.config.kinds import kind_of
from aligner_lib.tutorial.exercises.exercise import Exercise
from aligner_lib.tutorial.exercises.registry import exercises
from aligner_lib.tutorial.mistakes.evidence import MistakenRun
from data.atomic_files import atomic_text_files

FILE = Path(__file__).parent / "trained.jsonl"
FUNCTION = """from aligner_lib.tutorial.exercises.registry import exercise

ANSWERS = {{mistake.name: mistake.answer for mistake in exercise({exercise!r}).mistakes}}


def {name}{parameters}:
    return ANSWERS.get({mistake!r}, exercise({exercise!r}).reference)({arguments})
"""


def mistaken_run(exercise: str, mistake: str) -> MistakenRun | None:
    """The recorded run with a mistake; None if no job trains with the exercise's function."""
    return _recorded().get((exercise, mistake))


@cache
def _recorded() -> Mapping[tuple[str, str], MistakenRun]:
    records = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return {
        (record.pop("exercise"), record.pop("mistake")): MistakenRun(
            **{
                name: _as_tuples(value) if isinstance(value, list) else value
                for name, value in record.items()
            }
        )
        for record in records
    }


def _as_tuples(value):
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def write(exercise: str, runs: Mapping[str, MistakenRun]) -> None:
    """Write an exercise's runs into FILE in place of its earlier runs, a line of JSON for each. runs: by the mistake's name."""
    order = [*exercises()]
    kept = {key: run for key, run in _recorded().items() if key[0] != exercise and key[0] in order}
    written = kept | {(exercise, mistake): run for mistake, run in runs.items()}
    with atomic_text_files(FILE) as (stream,):
        for name, mistake in sorted(written, key=lambda key: order.index(key[0])):
            run = asdict(written[name, mistake])
            stream.write(json.dumps({"exercise": name, "mistake": mistake} | run) + "\n")
    _recorded.cache_clear()


def function_text(exercise: Exercise, mistake: str) -> str:
    """The text of a Python file for `functions.NAME` of a job: its function makes the mistake.

    mistake: the mistake's name, or "" for the right function. Raises ValueError if no job trains with the exercise's function.
    """
    if exercise.trains is None:
        raise ValueError(f"no job trains with {exercise.name}")
    kind, name = exercise.trains
    parameters = LibraryFunction(kind_of(kind).functions[name]).parameters
    arguments = ", ".join(part.partition(":")[0].strip() for part in parameters.strip("()").split(","))
    return FUNCTION.format(
        exercise=exercise.name, mistake=mistake, name=name, parameters=parameters, arguments=arguments
    )
