"""All exercises, in the order of the notebooks."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from aligner_lib.errors import UserError
from aligner_lib.tutorial.exercises.exercise import Exercise

NOTEBOOKS = ("01", "02", "03", "04", "04b", "05", "06", "07", "08", "11", "13", "14")


def exercises() -> dict[str, Exercise]:
    """All exercises by name. Imports no torch. Raises UserError for two exercises of the same name."""
    modules = [import_module(f"{__package__}.notebook_{number}") for number in NOTEBOOKS]
    by_name: dict[str, Exercise] = {}
    for exercise in (exercise for module in modules for exercise in module.EXERCISES):
        first = by_name.setdefault(exercise.name, exercise)
        if first is not exercise:
            raise UserError(
                f"the notebooks {first.notebook} and {exercise.notebook} both have an exercise {exercise.name!r}: rename one"
            )
    return by_name


def exercise(name: str) -> Exercise:
    """Find an exercise by name. Raises UserError for an unknown name, with the nearest name as a suggestion."""
    known = exercises()
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise UserError(f"there is no exercise {name!r}; did you mean {near!r}? All: {', '.join(known)}")
    return known[name]
