"""What an exercise is. No torch is imported before an answer is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from aligner_lib.tutorial.exercises.draw import Draw

STUB = "Yours to write: "  # an error of the learner's that begins like this says that nothing is written yet


class ImportedLate:
    """A module that is imported when something of it is used, so that the list of the exercises costs nothing."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that the exercise knows."""

    name: str
    meaning: str  # a sentence: what goes wrong, and what it does
    answer: Callable
    # whether wrong answers have this mistake that no planted one equals, by the inputs and what was returned to each
    seen_in: Callable[[list[dict[str, Any]], list[tuple]], bool] | None = None


@dataclass(frozen=True)
class Exercise:
    """A function for the learner to write. The notebook's function has the exercise's name."""

    name: str
    notebook: str  # its two digits
    title: str
    minutes: int
    difficulty: int  # 1 to 5
    hint: str  # Markdown
    reference: Callable
    inputs: Callable[
        [Draw], dict[str, Any]
    ]  # the arguments by name, in their order; they are passed by position
    outputs: tuple[str, ...]  # names of what is returned: one, or those of a tuple
    mistakes: tuple[Mistake, ...]
    gradients: tuple[str, ...] = ()  # the inputs to which gradients are compared
    cases: int = 6  # how many inputs an answer is tried on
    library: str = ""  # where the library has it, as module.function; "" where it has no use for it
    trains: tuple[str, str] | None = (
        None  # the kind of job that takes an answer, and as which of its functions
    )

    @property
    def stub(self) -> str:
        """What the function says until it is written."""
        return f"{STUB}{self.title}."
