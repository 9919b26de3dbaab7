"""Recognition of a mistake by its outputs: functions for `Mistake.seen_in`, for a mistake that learners write in several forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aligner_lib.tutorial.exercises.outcome import close, numbers_of, outcome

SeenIn = Callable[[list[dict[str, Any]], list[tuple]], bool]


def equal_to(*answers: Callable) -> SeenIn:
    """Recognises functions whose outputs equal those of one of the answers in every case."""
    return lambda cases, outputs: any(_equal(answer, cases, outputs) for answer in answers)


def not_finite_or_equal_to(answer: Callable) -> SeenIn:
    """Recognises functions whose outputs are infinite or NaN in some cases, and equal those of the answer in all others."""

    def seen_in(cases: list[dict[str, Any]], outputs: list[tuple]) -> bool:
        finite = [(case, returned) for case, returned in zip(cases, outputs) if _are_finite(returned)]
        return 0 < len(finite) < len(cases) and _equal(answer, *zip(*finite))

    return seen_in


def _equal(answer: Callable, cases: Sequence[dict[str, Any]], outputs: Sequence[tuple]) -> bool:
    for case, returned in zip(cases, outputs):
        planted = outcome(answer, case, ())
        if planted.error or len(planted.outputs) != len(returned):
            return False
        if not all(map(close, planted.outputs, returned)):
            return False
    return True


def _are_finite(outputs: tuple) -> bool:
    numbers = [numbers_of(output) for output in outputs]
    return all(values is not None and bool(values.isfinite().all()) for values in numbers)
