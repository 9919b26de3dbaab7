"""The definition of an exercise. Torch is imported only when a function is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from aligner_lib.tutorial.exercises.draw import Draw

# the error message of an empty function, a NotImplementedError, begins with these words
STUB = "Yours to write: "


class ImportedLate:
    """A module that is imported at its first use. The exercises can therefore be listed without an import of torch."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


@dataclass(frozen=True)
class Mistake:
    """A planted mistake: a wrong function that the exercise recognises."""

    name: str
    meaning: str
    """A sentence for the learner: the error and its effect."""
    answer: Callable
    """A function that makes the mistake."""
    seen_in: Callable[[list[dict[str, Any]], list[tuple]], bool] | None = None
    """Recognises the mistake in other functions from their inputs and outputs."""


@dataclass(frozen=True)
class Exercise:
    """A function for the learner to write. The notebook's function has the exercise's name."""

    name: str
    notebook: str
    """The notebook's number, such as "03" or "04b"."""
    title: str
    minutes: int
    difficulty: int
    """From 1 to 5."""
    hint: str
    """Markdown."""
    reference: Callable
    inputs: Callable[[Draw], dict[str, Any]]
    """Draws the arguments by name, in the order of the parameters. The check passes the arguments by position."""
    outputs: tuple[str, ...]
    """Names of the outputs: a single name, or a name for each element of a tuple."""
    mistakes: tuple[Mistake, ...]
    gradients: tuple[str, ...] = ()
    """Inputs whose gradients are compared."""
    cases: int = 6
    """Number of random inputs of a check."""
    library: str = ""
    """The library's function as module.function, or "" if the library has none."""
    trains: tuple[str, str] | None = None
    """A kind of job, and the name of the library function that the learner's function replaces in a job of this kind."""

    @property
    def stub(self) -> str:
        """The error message of the empty function."""
        return f"{STUB}{self.title}."
