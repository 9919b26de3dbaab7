"""check("gae", fn) compares a learner's function with the reference, and names the mistake of a wrong function."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from aligner_lib.tutorial.checking.outcome import Difference, Outcome, alike, first_difference, outcome
from aligner_lib.tutorial.checking.verdict import NOT_YET, PASSED, WRONG, Verdict
from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import STUB, Exercise, Mistake
from aligner_lib.tutorial.exercises.registry import exercise
from aligner_lib.tutorial.workspace.learning_progress import record_exercise


def check(name: str, function: Callable, seed: int = 0) -> Verdict:
    """Call the learner's function on random inputs, and compare outputs and gradients with the reference's.

    The verdict displays itself in a notebook and prints on a terminal. A verdict is true if the function passed. Its
    `function` is the learner's function if that passed, else the reference. A wrong function that equals a planted
    mistake is called by the mistake's name. Raises UserError for an unknown exercise.
    """
    verdict = judge(exercise(name), function, seed)
    record_exercise(name, verdict.passed)
    return verdict


def judge(asked: Exercise, function: Callable, seed: int = 0) -> Verdict:
    """The verdict of `check`, without a record of the learner's progress."""
    if problem := _cannot_be_called(asked, function):
        return _wrong(asked, Difference("the signature", problem))
    cases = [asked.inputs(Draw(seed, number)) for number in range(asked.cases)]
    own = [outcome(function, case, asked.gradients) for case in cases]
    if isinstance(own[0].error, NotImplementedError) and str(own[0].error).startswith(STUB):
        return Verdict(
            asked, NOT_YET, "the function is still empty. The notebook continues with its own solution."
        )
    expected = [outcome(asked.reference, case, asked.gradients) for case in cases]
    for case, right, yours in zip(cases, expected, own):
        found = _failed(yours, function) or first_difference(right, yours, asked.outputs)
        if found:
            return _wrong(asked, found, case, _recognised(asked, cases, own))
    return Verdict(asked, PASSED, _praise(asked), function=function)


def _wrong(
    asked: Exercise,
    found: Difference,
    case: dict[str, Any] | None = None,
    mistake: Mistake | None = None,
) -> Verdict:
    return Verdict(asked, WRONG, found.sentence, mistake=mistake, difference=found, inputs=case or {})


def _praise(asked: Exercise) -> str:
    gradients = ", gradients included" if asked.gradients else ""
    return f"right on {asked.cases} random inputs{gradients}."


def _recognised(asked: Exercise, cases: list[dict[str, Any]], own: list[Outcome]) -> Mistake | None:
    """The planted mistake with the same outcome on every input, or the mistake that `seen_in` recognises in the outputs."""
    for mistake in asked.mistakes:
        planted = (outcome(mistake.answer, case, asked.gradients) for case in cases)
        if all(alike(*both) for both in zip(planted, own)):
            return mistake
    if not any(one.error for one in own):
        outputs = [one.outputs for one in own]
        return next((one for one in asked.mistakes if one.seen_in and one.seen_in(cases, outputs)), None)
    return None


def _cannot_be_called(asked: Exercise, function: Callable) -> str:
    if not callable(function):
        return (
            f"check expects the function itself, {asked.name} without parentheses. It received {function!r}."
        )
    inputs = asked.inputs(Draw(0))
    try:
        inspect.signature(function).bind(*inputs)
    except TypeError:
        return (
            f"The check calls {asked.name}({', '.join(inputs)}), but your function does not accept these "
            f"{len(inputs)} arguments."
        )
    except ValueError:  # a built-in function without a signature: the call will tell
        pass
    return ""


def _failed(yours: Outcome, function: Callable) -> Difference | None:
    if yours.error is None:
        return None
    error, code = yours.error, getattr(function, "__code__", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    at = f" in line {lines[-1] - code.co_firstlineno + 1}" if lines else ""
    message = "".join(f": {line}" for line in str(error).strip().splitlines()[:1]) or "."
    return Difference("an error", f"Your function raised {type(error).__name__}{at}{message}")
