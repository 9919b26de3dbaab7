"""Figures in prose: filled in from what runs recorded, and found where somebody typed one.

notebooks/recorded.json   what a tutorial's notebooks measured, by profile: written by `python notebooks/build.py --record`
notebooks/measured.toml   what other commands measured: figures by name, each table with its command under `by`; and under
                          `typed`, by page, the figures that stand on the page alone, with their origin

A notebook's source names a figure as `{{laptop.rm.val_acc}}`, a page as `0.77<!--laptop.rm.val_acc-->`: the number before
the comment is the figure, and the comment is invisible where Markdown is shown. Behind a colon stands a format (`:.1f`);
without one a figure has two decimals.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

NAME = r"([\w./]+)(?::([^}>]+?))?"
PLACEHOLDER = re.compile(r"\{\{" + NAME + r"\}\}")
MARKER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?<!--" + NAME + r"-->")
DECIMAL = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.]*\d)(?:e-?\d+)?")
# a decimal there is code, an equation, a file's name, another page's address, or made by a program with a test of its own
NO_PROSE = re.compile(
    r"<!-- made by benchmarks.*?<!-- until here -->|```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)\s]*\)|arXiv:[\d.]+",
    re.DOTALL,
)


def read_figures(root: Path) -> dict:
    """All figures that prose may name. root: the project's folder.

    To each profile's own come `minutes`, of all notebooks that lead to an aligned model together, and `peak_memory_gib`.
    """
    figures = json.loads((root / "notebooks" / "recorded.json").read_text())
    for profile in figures.values():
        on_the_way = [seconds for name, seconds in profile["seconds"].items() if name < "09"]
        profile["minutes"] = sum(on_the_way) / 60
        profile["peak_memory_gib"] = max(profile["memory_gib"].values(), default=0.0)
    return figures | {name: table for name, table in measured(root).items() if name != "typed"}


def measured(root: Path) -> dict:
    """measured.toml as it stands."""
    return tomllib.loads((root / "notebooks" / "measured.toml").read_text(encoding="utf-8"))


def figure(figures: dict, name: str, form: str | None, place: str) -> str:
    """The figure of a dotted name as text. Raises KeyError, which names the place, where there is none."""
    value = figures
    for key in name.split("."):
        try:
            value = value[int(key) if isinstance(value, list) else key]  # a list: a figure and its interval
        except (KeyError, IndexError):
            raise KeyError(f"{place}: no run recorded a figure {name}") from None
    return format(value, form or ".2f")


def fill_placeholders(text: str, figures: dict, place: str) -> str:
    """A notebook's source with its figures. Raises KeyError for an unknown one."""
    return PLACEHOLDER.sub(lambda match: figure(figures, match[1], match[2], place), text)


def fill_markers(text: str, figures: dict, place: str) -> str:
    """A page with today's figures before its markers. Raises KeyError for an unknown one."""

    def filled(match: re.Match) -> str:
        return figure(figures, match[1], match[2], place) + match[0][match[0].index("<!--") :]

    return MARKER.sub(filled, text)


def typed_decimals(text: str) -> set[str]:
    """The decimals in a page's or a notebook's prose that no marker and no placeholder filled in."""
    return set(DECIMAL.findall(NO_PROSE.sub(" ", MARKER.sub(" ", PLACEHOLDER.sub(" ", text)))))
