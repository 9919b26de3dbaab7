"""Colours that colour-blind readers can tell apart (Okabe and Ito), with dashes and markers for greyscale."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pen:
    """How a line is drawn."""

    colour: str
    dash: tuple  # matplotlib's (offset, on-off lengths)
    marker: str


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = (
    (0, ()),
    (0, (5, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (9, 3)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")


def places(line: int) -> tuple[int, int, int]:
    """Which colour, dash and marker line number `line` (from 0) has.

    The colours come again after six lines, each time with another dash and another marker: 18 lines differ.
    monitor/pens.js has the same.
    """
    turn, colour = divmod(line, 6)
    return colour, (colour + turn) % 6, (colour + 2 * turn) % 6


def pen(line: int) -> Pen:
    """The pen of line number `line` (from 0)."""
    colour, dash, marker = places(line)
    return Pen(COLOURS[colour], DASHES[dash], MARKERS[marker])
