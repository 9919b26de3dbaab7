"""Options that the benchmarks' commands have in common."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Iterable


def documented_parser(name: str, documentation: str) -> ArgumentParser:
    """A parser of `python -m benchmarks.NAME` whose help is the module's documentation."""
    return ArgumentParser(
        f"python -m benchmarks.{name}", description=documentation, formatter_class=RawDescriptionHelpFormatter
    )


def some_of(known: Iterable[str], text: str) -> list[str]:
    """The names in a text, separated by commas. Raises ArgumentTypeError for an unknown name."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(known)):
        raise ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
    return names


def whole_number(least: int, text: str) -> int:
    """The whole number in a text. Raises ArgumentTypeError for a smaller number than `least`."""
    if not text.isdecimal() or int(text) < least:
        raise ArgumentTypeError(f"{text} is not a whole number of at least {least}")
    return int(text)
