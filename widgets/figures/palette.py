"""Okabe and Ito's colours for colour-blind readers, with dashes and markers for greyscale."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pen:
    """The style of a line."""

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
    """The indices of the colour, dash and marker for line number `line` (from 0).

    The colours repeat after six lines, with other dashes and markers, so 18 lines have different styles. monitor/pens.js has
    the same function.
    """
    turn, colour = divmod(line, 6)
    return colour, (colour + turn) % 6, (colour + 2 * turn) % 6


def pen(line: int) -> Pen:
    """The pen of line number `line` (from 0)."""
    colour, dash, marker = places(line)
    return Pen(COLOURS[colour], DASHES[dash], MARKERS[marker])
