"""check("gae", fn) compares a learner's function with the reference function, and names the mistake of a wrong function."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aligner_lib.errors import UserError
from aligner_lib.tutorial.checking.relation import relation
from aligner_lib.tutorial.checking.verdict import NOT_YET, PASSED, WRONG, ExerciseVerdict
from aligner_lib.tutorial.exercises import registry
from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import STUB, Exercise, Mistake
from aligner_lib.tutorial.exercises.outcome import (
    SECONDS,
    AnswerOutcome,
    Difference,
    alike,
    first_difference,
    outcome,
)
from aligner_lib.tutorial.exercises.time_limit import LoopWithoutEnd
from aligner_lib.tutorial.workspace.learning_progress import record_exercise


def check(name: str, function: Callable, seed: int = 0) -> ExerciseVerdict:
    """Call the learner's function on random inputs, and compare its outputs and gradients with those of the reference function.

    The verdict has an HTML display for notebooks and a text display for terminals. A verdict is true if the function passed.
    `verdict.function` is the learner's function if the function passed, else the reference. If a wrong function equals a
    planted mistake, the verdict names the mistake. Raises UserError for an unknown exercise, and for a reference that fails.
    """
    verdict = judge(registry.exercise(name), function, seed)
    if verdict.status != NOT_YET:  # an empty function is no attempt
        record_exercise(name, verdict.passed)
    return verdict


def judge(exercise: Exercise, function: Callable, seed: int = 0) -> ExerciseVerdict:
    """The verdict of `check`, without recording the learner's progress."""
    if problem := _cannot_be_called(exercise, function):
        return _wrong(exercise, Difference("the signature", problem))
    if author := _other_author(exercise, function):
        return ExerciseVerdict(
            exercise, NOT_YET, f"{author} Run the cell with your own function, and check again."
        )
    cases = [exercise.inputs(Draw(seed, number)) for number in range(exercise.cases)]
    own = _outcomes(exercise, function, cases)
    if isinstance(own[0].error, NotImplementedError) and str(own[0].error).startswith(STUB):
        return ExerciseVerdict(
            exercise,
            NOT_YET,
            "the function still has the line `raise NotImplementedError`. Replace the line with your code. The notebook continues "
            "with its own solution.",
        )
    expected = [_expected(exercise, number, case) for number, case in enumerate(cases)]
    for case, right, yours in zip(cases, expected, own):
        difference = _failed(yours, function) or first_difference(right, yours, exercise.outputs)
        if difference:
            mistake = _recognised(exercise, cases, own)
            if mistake is None and (related := relation(expected, own, exercise.outputs)):
                difference = replace(difference, sentence=f"{difference.sentence} {related}")
            return _wrong(exercise, difference, case, mistake)
    return ExerciseVerdict(exercise, PASSED, _praise(exercise), function=function)


def _other_author(exercise: Exercise, function: Callable) -> str:
    """A sentence about a function that is the reference or the library's; "" for the learner's own function."""
    if function is exercise.reference:
        return "the function is the tutorial's solution, which an earlier check returned."
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return f"the function is the library's {name}." if name == exercise.library else ""


def _expected(exercise: Exercise, number: int, case: dict[str, Any]) -> AnswerOutcome:
    """The outcome of the reference. Raises UserError for an error of the reference, and for a wrong number of outputs."""
    right = outcome(exercise.reference, case, exercise.gradients)
    if right.error is not None:
        problem = _error_in_words(right.error, exercise.reference)
    elif len(right.outputs) != len(exercise.outputs):
        problem = f"the exercise names {', '.join(exercise.outputs)}, and the number of outputs is {len(right.outputs)}"
    else:
        return right
    raise UserError(f"the reference of {exercise.name} fails on case {number}: {problem}")


def _outcomes(exercise: Exercise, function: Callable, cases: list[dict[str, Any]]) -> list[AnswerOutcome]:
    """The outcome of the learner's function for each case. Stops after a time-out, because later cases would time out, too."""
    own: list[AnswerOutcome] = []
    call = function if len(exercise.outputs) == 1 else _with_a_tuple_for_a_list(function)
    for case in cases:
        own.append(outcome(call, case, exercise.gradients))
        if isinstance(own[-1].error, LoopWithoutEnd):
            break
    return own


def _with_a_tuple_for_a_list(function: Callable) -> Callable:
    """The function, with a returned list as a tuple: the notebooks unpack both alike."""

    def call(*inputs: Any) -> Any:
        returned = function(*inputs)
        return tuple(returned) if isinstance(returned, list) else returned

    return call


def _wrong(
    exercise: Exercise,
    difference: Difference,
    case: dict[str, Any] | None = None,
    mistake: Mistake | None = None,
) -> ExerciseVerdict:
    return ExerciseVerdict(
        exercise, WRONG, difference.sentence, mistake=mistake, difference=difference, inputs=case or {}
    )


def _praise(exercise: Exercise) -> str:
    gradients = ", gradients included" if exercise.gradients else ""
    return f"right on {exercise.cases} random inputs{gradients}."


def _recognised(exercise: Exercise, cases: list[dict[str, Any]], own: list[AnswerOutcome]) -> Mistake | None:
    """The planted mistake with the same outcome on every input, or the mistake that `seen_in` recognises in the outputs."""
    for mistake in exercise.mistakes:
        planted = (outcome(mistake.answer, case, exercise.gradients) for case in cases)
        if all(alike(*both) for both in zip(planted, own)):
            return mistake
    if not any(result.error for result in own):
        outputs = [result.outputs for result in own]
        return next((mistake for mistake in exercise.mistakes if _is_seen(mistake, cases, outputs)), None)
    return None


def _is_seen(mistake: Mistake, cases: list[dict[str, Any]], outputs: list[tuple]) -> bool:
    if mistake.seen_in is None:
        return False
    try:
        return mistake.seen_in(cases, outputs)
    except Exception:  # seen_in computes with outputs of any type, dtype and shape
        return False


def _cannot_be_called(exercise: Exercise, function: Callable) -> str:
    if not callable(function):
        return f"check expects the function itself, {exercise.name} without parentheses. It received {function!r}."
    inputs = exercise.inputs(Draw(0))
    try:
        inspect.signature(function).bind(*inputs)
    except TypeError:
        return (
            f"The check calls {exercise.name}({', '.join(inputs)}), but your function does not accept these "
            f"{len(inputs)} arguments."
        )
    except ValueError:  # some built-in functions have no signature; wrong arguments then fail in the call
        pass
    return ""


def _failed(yours: AnswerOutcome, function: Callable) -> Difference | None:
    if yours.error is None:
        return None
    if isinstance(yours.error, LoopWithoutEnd):
        at = _line(yours.error, function)
        return Difference(
            "the time", f"Your function did not end within {SECONDS:g} s{at}. Does a loop of it never end?"
        )
    return Difference("an error", f"Your function raised {_error_in_words(yours.error, function)}")


def _error_in_words(error: BaseException, function: Callable) -> str:
    """The type of an error, the line of the function, and the first line of the message."""
    message = "".join(f": {line}" for line in str(error).strip().splitlines()[:1]) or "."
    return f"{type(error).__name__}{_line(error, function)}{message}"


def _line(error: BaseException, function: Callable) -> str:
    """The last line of the function that the error has passed, in words; "" if the error has passed none."""
    code = getattr(function, "__code__", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    return f" in line {lines[-1] - code.co_firstlineno + 1}" if lines else ""
