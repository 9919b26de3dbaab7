"""Finds how a wrong result is related to the right result: by another order, another sign, a factor, an offset, a shift, …"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

from aligner_lib.tutorial.exercises.exercise import ImportedLate
from aligner_lib.tutorial.exercises.outcome import (
    ABSOLUTE,
    RELATIVE,
    AnswerOutcome,
    close,
    number_text,
    numbers_of,
)

if TYPE_CHECKING:
    from torch import Tensor

torch = ImportedLate("torch")

Pairs = Sequence[tuple["Tensor", "Tensor"]]


def relation(expected: Sequence[AnswerOutcome], got: Sequence[AnswerOutcome], names: Sequence[str]) -> str:
    """A sentence about the relation of the wrong to the right outputs, if every case has the same relation; otherwise "".

    expected, got: one outcome for each case. names: of the outputs. Only the first output that differs is compared.
    """
    if any(answer.error or len(answer.outputs) != len(names) for answer in got):
        return ""
    if exchanged := _exchanged(expected, got, names):
        return exchanged
    for place, name in enumerate(names):
        pairs = [
            (numbers_of(right.outputs[place]), numbers_of(yours.outputs[place]))
            for right, yours in zip(expected, got)
        ]
        if any(right is None or yours is None for right, yours in pairs):
            return ""
        if not all(close(*pair) for pair in pairs):
            if constant := _constant(name, pairs):
                return constant
            floats = [(right.double(), yours.double()) for right, yours in pairs]
            sentences = (sentence(floats) for sentence in RELATIONS)
            return next((sentence.format(name=name) for sentence in sentences if sentence), "")
    return ""


def _exchanged(expected: Sequence[AnswerOutcome], got: Sequence[AnswerOutcome], names: Sequence[str]) -> str:
    for order in permutations(range(len(names))):
        if order != tuple(sorted(order)) and all(
            all(close(right.outputs[place], yours.outputs[at]) for place, at in enumerate(order))
            for right, yours in zip(expected, got)
        ):
            return f"The values are right, but in another order. Return {', '.join(names)}."
    return ""


def _constant(name: str, pairs: Pairs) -> str:
    rights, yours = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    if not len(yours) or (yours != yours[0]).any() or (rights == rights[:1]).all():
        return ""
    return f"Every value of {name} is {number_text(yours[0])} for every input."


def _same_shapes(pairs: Pairs) -> bool:
    return all(right.shape == yours.shape for right, yours in pairs)


def _flat(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The values of all cases that are finite on both sides: right [N] and the learner's [N]."""
    rights, yours = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    finite = rights.isfinite() & yours.isfinite()
    return rights[finite], yours[finite]


def _another_sign(pairs: Pairs) -> str:
    if _same_shapes(pairs) and all(close(right, -yours) for right, yours in pairs):
        return "Every value of {name} has the other sign."
    return ""


def _scaled(pairs: Pairs) -> str:
    if not _same_shapes(pairs):
        return ""
    right, yours = _flat(pairs)
    weight = (right * right).sum()
    factor = float((right * yours).sum() / weight) if weight > 0 else 0.0
    if abs(factor) > 1e-3 and all(close(factor * right, yours) for right, yours in pairs):
        return f"Every value of {{name}} is {factor:.6g} times the right one."
    return ""


def _too_large(pairs: Pairs) -> str:
    if not _same_shapes(pairs):
        return ""
    right, yours = _flat(pairs)
    offset = float((yours - right).mean()) if len(right) else 0.0
    if offset and all(close(right + offset, yours) for right, yours in pairs):
        return (
            f"Every value of {{name}} is the right one {'plus' if offset > 0 else 'minus'} {abs(offset):.6g}."
        )
    return ""


def _transposed(pairs: Pairs) -> str:
    if all(right.ndim == yours.ndim == 2 and close(right, yours.mT) for right, yours in pairs):
        return "{name} is transposed: its rows should be its columns."
    return ""


def _shifted(pairs: Pairs) -> str:
    if not _same_shapes(pairs) or not all(right.ndim and right.shape[-1] > 1 for right, _ in pairs):
        return ""
    for side, there, here in (
        ("right", slice(1, None), slice(None, -1)),
        ("left", slice(None, -1), slice(1, None)),
    ):
        if all(close(right[..., here], yours[..., there]) for right, yours in pairs):
            return f"The values of {{name}} stand one place too far to the {side}."
    return ""


def _limited(pairs: Pairs) -> str:
    """Recognises a clamp: only the most extreme values are wrong, and all wrong values are near the same number."""
    if not _same_shapes(pairs):
        return ""
    right, yours = _flat(pairs)
    wrong = ~torch.isclose(right, yours, RELATIVE, ABSOLUTE)
    if wrong.sum() < 2 or wrong.all():
        return ""
    for side, sign in (("above", 1), ("below", -1)):
        limit = (sign * yours).max()
        beyond = (sign * right)[wrong].min() > (sign * right)[~wrong].max()
        near = limit - (sign * yours)[wrong].min() <= 0.2 * abs(limit)
        if beyond and near and (sign * (right - yours)[wrong] > 0).all():
            most = (sign * right).max()
            return (
                f"No value of {{name}} is {side} {sign * limit:.4g}, and the right ones reach {sign * most:.4g}. "
                "Is something clamped, or a small number added?"
            )
    return ""


RELATIONS: tuple[Callable[[Pairs], str], ...] = (
    _another_sign,
    _scaled,
    _too_large,
    _transposed,
    _shifted,
    _limited,
)
