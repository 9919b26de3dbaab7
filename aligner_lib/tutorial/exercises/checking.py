"""check("gae", fn): is it right? If not: where it differs, and the name of the mistake."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import STUB, Exercise, Mistake
from aligner_lib.tutorial.exercises.outcome import Difference, Outcome, alike, first_difference, outcome
from aligner_lib.tutorial.exercises.registry import exercise
from aligner_lib.tutorial.exercises.verdict import NOT_YET, PASSED, WRONG, Verdict
from aligner_lib.tutorial.learning_progress import record_exercise


def check(name: str, function: Callable, seed: int = 0) -> Verdict:
    """Try an answer to an exercise on random inputs, and compare outputs and gradients with the reference's.

    The verdict shows itself in a notebook and prints on a terminal; it is true if the answer passed, and its `function` is
    the answer then, and else the reference. A wrong answer that equals a planted one is called by its name. Raises
    UserError for an exercise that isn't there.
    """
    verdict = judge(exercise(name), function, seed)
    record_exercise(name, verdict.passed)
    return verdict


def judge(asked: Exercise, function: Callable, seed: int = 0) -> Verdict:
    """The verdict alone; nothing is noted."""
    if problem := _cannot_be_called(asked, function):
        return _wrong(asked, Difference("the signature", problem))
    cases = [asked.inputs(Draw(seed, number)) for number in range(asked.cases)]
    own = [outcome(function, case, asked.gradients) for case in cases]
    if isinstance(own[0].error, NotImplementedError) and str(own[0].error).startswith(STUB):
        return Verdict(
            asked, NOT_YET, "its cell waits for you; the notebook goes on with an answer of its own."
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
    gradients = ", and so are the gradients" if asked.gradients else ""
    return f"right on {asked.cases} random inputs{gradients}."


def _recognised(asked: Exercise, cases: list[dict[str, Any]], own: list[Outcome]) -> Mistake | None:
    """The planted wrong answer that gives the same on every input, or the mistake that can be seen in what was returned."""
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
        return f"check takes the function itself, {asked.name} without brackets; this is {function!r}."
    inputs = asked.inputs(Draw(0))
    try:
        inspect.signature(function).bind(*inputs)
    except TypeError:
        return (
            f"It is called with {len(inputs)} arguments, as {asked.name}({', '.join(inputs)}), and can't be."
        )
    except ValueError:  # a built-in function without a signature: the call will tell
        pass
    return ""


def _failed(yours: Outcome, function: Callable) -> Difference | None:
    if yours.error is None:
        return None
    error, code = yours.error, getattr(function, "__code__", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    at = f" in its line {lines[-1] - code.co_firstlineno + 1}" if lines else ""
    message = "".join(f": {line}" for line in str(error).strip().splitlines()[:1]) or "."
    return Difference("an error", f"It raised {type(error).__name__}{at}{message}")
