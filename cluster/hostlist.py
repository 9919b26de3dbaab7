"""Expands Slurm's short form of host names.

`scontrol show hostnames` does the same, but container images seldom contain Slurm's tools.
"""

import itertools
import re

_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def expand(nodelist: str) -> list[str]:
    """'gpu[07-09,12],login1' → ['gpu07', 'gpu08', 'gpu09', 'gpu12', 'login1']."""
    return [host for part in _OUTSIDE_BRACKETS.split(nodelist) if part for host in _expand_part(part)]


def _expand_part(part: str) -> list[str]:
    pieces = _BRACKETS.split(part)  # text, inside of brackets, text, …
    choices = [_ranges(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _ranges(inside: str) -> list[str]:
    numbers = []
    for piece in inside.split(","):
        low, _, high = piece.partition("-")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high or low) + 1)]
    return numbers
