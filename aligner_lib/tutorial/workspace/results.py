"""The results of a workspace's notebooks, `results/NN.json`, merged into a single record."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path

from aligner_lib.run_folder import files


def read_results(out: Path, say: Callable[[str], None], without: Collection[str] = ()) -> dict:
    """The merged results of all notebooks, without those of some numbers.

    A damaged file is left out, and `say` is called with a message about the file.
    """
    figures: dict = {}
    for path in sorted((out / "results").glob("*.json")):
        if path.stem not in without:
            merge(figures, read_object(path, say))
    return figures


def read_object(path: Path, say: Callable[[str], None]) -> dict:
    """Read a JSON object. Returns {}, and calls `say` with a message, if a full disk or a kill has damaged the file."""
    try:
        return files.read_object(path)
    except files.UnreadableFileError:
        say(f"{path} is damaged, so the summary leaves it out; run its notebooks again")
        return {}


def merge(into: dict, result: dict) -> None:
    """Merge `result` into `into`, recursively. The value of `result` replaces an existing value."""
    for name, value in result.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def without_nan(figures):
    """The same figures with None instead of NaN, because JSON has no NaN. NaN stands for a figure that is not identifiable."""
    if isinstance(figures, dict):
        return {name: without_nan(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [without_nan(value) for value in figures]
    return None if isinstance(figures, float) and math.isnan(figures) else figures
