"""Checks of a notebook's parameters, for which papermill passes on any value: `-p lora false` gives the text 'false'."""

from __future__ import annotations

import re


def require_one_of(name: str, value: object, *choices: str) -> None:
    """Raise ValueError if a parameter has none of the values that it can have."""
    if value not in choices:
        *others, last = choices
        raise ValueError(f"{name}={value!r}: choose {', '.join(others)} or {last}")


def require_count(name: str, value: object) -> int:
    """The value of a parameter as an int, also of a text with digits. Raises ValueError unless it is a whole number from 1 on."""
    if not re.fullmatch(r"0*[1-9]\d*", str(value)):
        raise ValueError(f"{name}={value!r}: write a whole number, at least 1")
    return int(str(value))
