"""Colours that colour-blind readers can tell apart (Okabe and Ito), with dashes and markers for greyscale."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pen:
    """How a line is drawn."""

    colour: str
    dash: tuple  # matplotlib's (offset, on-off lengths)
    marker: str


PENS = (
    Pen("#0072B2", (0, ()), "o"),
    Pen("#D55E00", (0, (5, 2)), "s"),
    Pen("#009E73", (0, (1.5, 1.5)), "^"),
    Pen("#CC79A7", (0, (6, 2, 1.5, 2)), "D"),
    Pen("#56B4E9", (0, (9, 3)), "v"),
    Pen("#E69F00", (0, (3, 1.5, 1, 1.5, 1, 1.5)), "P"),
)


def pen(line: int) -> Pen:
    """The pen of line number `line` (from 0); after six they repeat."""
    return PENS[line % len(PENS)]
