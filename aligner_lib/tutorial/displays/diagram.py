"""The notebooks' diagrams as SVG. diagrams.toml defines each diagram by its parts: boxes, rows of tokens, arrows and texts.

A diagram has the colour of the surrounding text. To write a diagram to a file:

python -m aligner_lib.tutorial.displays.diagram pipeline > docs/pipeline.svg
"""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from html import escape
from pathlib import Path

BOX = (122, 42)  # width and height in pixels
TOKEN_HEIGHT, TOKEN_GAP = 30, 4
LINE_HEIGHT = 17  # of a box's text
LEGEND_HEIGHT = 32
SUBSCRIPT = re.compile(r"_\{(\w+)\}")
COLOUR_ON_PAPER = "#20303f"
STYLE = """
.lab-diagram { max-width: 100%; height: auto; display: block; font: 14px system-ui, sans-serif; }
.lab-diagram text { fill: currentColor; text-anchor: middle; dominant-baseline: central; }
.lab-diagram .said { font-size: 12px; opacity: .85; }
.lab-diagram .left { text-anchor: start; }
.lab-diagram rect { fill: none; stroke: currentColor; stroke-opacity: .65; stroke-width: 1.3; }
.lab-diagram .trained { fill: #e69f00; fill-opacity: .32; }
.lab-diagram .frozen { fill: #2b8cc4; fill-opacity: .25; stroke-dasharray: 2 3; }
.lab-diagram .frame { stroke-dasharray: 7 5; stroke-opacity: .5; }
.lab-diagram .bar { fill: currentColor; fill-opacity: .55; stroke: none; }
.lab-diagram path { fill: none; stroke: currentColor; stroke-width: 1.5; stroke-opacity: .75; }
.lab-diagram .head { fill: currentColor; fill-opacity: .75; stroke: none; }
"""
ON_PAPER = '<rect width="100%" height="100%" style="fill: #fff; stroke: none"/>'  # white, because the page's colour is unknown


@cache
def diagrams() -> dict[str, dict]:
    """The parts of each diagram, by the diagram's name."""
    return tomllib.loads(Path(__file__).with_name("diagrams.toml").read_text(encoding="utf-8"))


class Diagram:
    """A diagram of diagrams.toml, with an SVG display for notebooks. Raises KeyError for an unknown name."""

    def __init__(self, name: str):
        self.parts = diagrams()[name]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, including the legend."""
        width, height = self.parts["size"]
        return width, height + (LEGEND_HEIGHT if "legend" in self.parts else 0)

    def svg(self, on_paper: bool = False) -> str:
        """The diagram as SVG. on_paper: dark on white, for an SVG file."""
        parts, (width, height) = self.parts, self.size
        style = STYLE.replace("currentColor", COLOUR_ON_PAPER) if on_paper else STYLE
        drawn = [
            *(_frame(**frame) for frame in parts.get("frames", ())),
            *(_box(**box) for box in parts.get("boxes", ())),
            *(_tokens(**strip) for strip in parts.get("tokens", ())),
            *(_bars(**bars) for bars in parts.get("bars", ())),
            *(_arrow(**arrow) for arrow in parts.get("arrows", ())),
            *(_text(**text) for text in parts.get("texts", ())),
            _legend(parts.get("legend", {}), parts["size"][1]),
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="lab-diagram" width="{width}" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(parts["words"])}"><style>{style}</style>{ON_PAPER if on_paper else ""}<defs><marker id="lab-head" '
            'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>{"".join(drawn)}</svg>'
        )

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return self.parts["words"]


# ---- the parts: positions are [x, y] and sizes [width, height], in pixels ---------------------------------------------


def _box(text: str, at: list, size: list | tuple = BOX, kind: str = "", corner: int = 8) -> str:
    """A box with text. kind: "trained", "frozen" or "" for neither."""
    (left, top), (width, height) = at, size
    rectangle = f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="{corner}"/>'
    lines = text.split("\n")
    first = top + height / 2 - LINE_HEIGHT * (len(lines) - 1) / 2
    middle = left + width / 2
    return rectangle + "".join(
        f'<text x="{middle:g}" y="{first + LINE_HEIGHT * number:g}">{_marked(line)}</text>'
        for number, line in enumerate(lines)
    )


def _tokens(texts: list, at: list, width: int, kinds: str = "") -> str:
    """A row of small boxes. kinds: a letter for each box: t for trained, f for frozen, - for neither."""
    names = {"t": "trained", "f": "frozen", "-": ""}
    places = [[at[0] + (width + TOKEN_GAP) * number, at[1]] for number in range(len(texts))]
    return "".join(
        _box(text, place, (width, TOKEN_HEIGHT), names[kind], 5)
        for text, place, kind in zip(texts, places, kinds or "-" * len(texts), strict=True)
    )


def _bars(values: list, at: list, width: int, scale: float) -> str:
    """Bars above and below a horizontal line, aligned with a row of tokens at the same x. scale: pixels for a value of 1."""
    left, base = at
    drawn = f'<path d="M{left} {base}H{left + (width + TOKEN_GAP) * len(values) - TOKEN_GAP}" style="stroke-opacity: .35"/>'
    for number, value in enumerate(values):
        x, height = left + (width + TOKEN_GAP) * number + width / 4, abs(value) * scale
        top = base - height if value > 0 else base
        drawn += f'<rect class="bar" x="{x:g}" y="{top:g}" width="{width / 2:g}" height="{height:g}"/>'
        drawn += _text(
            f"{value:+g}".replace("-", "−") if value else "0", [x + width / 4, min(top, base) - 10]
        )
    return drawn


def _frame(at: list, size: list, title: str = "") -> str:
    (left, top), (width, height) = at, size
    named = f'<text class="left" x="{left + 15}" y="{top + 20}">{escape(title)}</text>' if title else ""
    return f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}" rx="12"/>{named}'


def _arrow(path: str, label: str = "", at: list | None = None) -> str:
    return f'<path d="{path}" marker-end="url(#lab-head)"/>' + (_text(label, at) if label else "")


def _text(text: str, at: list, kind: str = "said") -> str:
    """Lines of text. kind: CSS classes, `said` (small), `left` (left-aligned) or both."""
    return "".join(
        f'<text class="{kind}" x="{at[0]:g}" y="{at[1] + 14 * number:g}">{_marked(line)}</text>'
        for number, line in enumerate(text.split("\n"))
    )


def _marked(line: str) -> str:
    """A line of text as SVG. `r_{c}` becomes r with the subscript c."""
    return SUBSCRIPT.sub(
        r'<tspan dy="4" font-size=".75em">\1</tspan><tspan dy="-4">&#8203;</tspan>', escape(line)
    )


def _legend(words: dict[str, str], top: int) -> str:
    """The legend. words: the text for each kind of box."""
    drawn, x = "", 10
    for kind, text in words.items():
        drawn += f'<rect class="{kind}" x="{x}" y="{top + 8}" width="18" height="14" rx="3"/>'
        drawn += _text(text, [x + 25, top + 15], "said left")
        x += 60 + 7 * len(text)
    return drawn


if __name__ == "__main__":
    print(Diagram(sys.argv[1]).svg(on_paper=True))
