"""What the notebooks of a workspace measured: `results/NN.json`, in one record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path


def read_results(out: Path, say: Callable[[str], None]) -> dict:
    """All notebooks' figures, merged in their order. say: told of each file that is damaged, and left out."""
    figures: dict = {}
    for path in sorted((out / "results").glob("*.json")):
        merge(figures, read_object(path, say))
    return figures


def read_object(path: Path, say: Callable[[str], None]) -> dict:
    """A JSON object; empty, with a message, when a full disk or a kill damaged the file."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    say(f"{path} is damaged, so the summary leaves it out; run its notebooks again")
    return {}


def merge(into: dict, result: dict) -> None:
    """Add a record to another, one level of names after the other; the later value stands."""
    for name, value in result.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def without_nan(figures):
    """The same figures with null in place of NaN, which JSON does not have: where nothing is identifiable."""
    if isinstance(figures, dict):
        return {name: without_nan(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [without_nan(value) for value in figures]
    return None if isinstance(figures, float) and math.isnan(figures) else figures
