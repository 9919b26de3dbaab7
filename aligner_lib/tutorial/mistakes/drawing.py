"""A run with a mistake as a small line chart: SVG in the colour of the surrounding text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from aligner_lib.tutorial.mistakes.evidence import MistakenRun

WIDTH, HEIGHT = 460, 170
LEFT, RIGHT, TOP, BOTTOM = 58, 150, 24, 24
WRONG = "#D55E00"
Points = Sequence[tuple[float, float]]


def drawing(run: MistakenRun) -> str:
    """An SVG chart of the metric that shows the mistake best; "" if no metric shows the mistake."""
    if not run.metric:
        return ""
    every = [run.wrong, run.right, *run.others]
    steps = [step for points in every for step, _ in points]
    values = [value for points in every for _, value in points]
    low, high = min(values), max(values)
    height = (high - low) or 1.0
    width = (max(steps) - min(steps)) or 1

    def place(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (step - min(steps)) / width
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / height
        return round(x, 1), round(y, 1)

    def line(points: Points, style: str) -> str:
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
        return f'<polyline points="{path}" fill="none" {style}/>'

    of_wrong, of_right = place(*run.wrong[-1])[1], place(*run.right[-1])[1]
    labels = _apart([("with the mistake", of_wrong, WRONG), ("right", of_right, "currentColor")])
    at = WIDTH - RIGHT + 6
    named = "".join(f'<text x="{at}" y="{y}" fill="{colour}">{text}</text>' for text, y, colour in labels)
    grid = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".2"/>'
        for y in (TOP, HEIGHT - BOTTOM)
    )
    corners = (
        f'<text x="{LEFT - 6}" y="{TOP}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{HEIGHT - BOTTOM}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">step {min(steps)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{max(steps)}</text>'
    )
    lines = [line(points, 'stroke="currentColor" stroke-opacity=".3"') for points in run.others]
    lines.append(line(run.right, 'stroke="currentColor" stroke-width="2"'))
    lines.append(line(run.wrong, f'stroke="{WRONG}" stroke-width="2" stroke-dasharray="5 3"'))
    words = f"{run.metric}: with the mistake {run.wrong[-1][1]:.3g} at the last step, right {run.right[-1][1]:.3g}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(words)}" '
        'style="max-width: 100%; font: 12px system-ui, sans-serif; dominant-baseline: middle" fill="currentColor">'
        f'<text x="{LEFT}" y="8" font-weight="600">{escape(run.chart or run.metric)}</text>{grid}{corners}{"".join(lines)}{named}</svg>'
    )


def _apart(labels: list[tuple[str, float, str]], least: float = 15) -> list[tuple[str, float, str]]:
    """Two labels (text, height, colour), moved apart to a distance of at least `least` if they overlap."""
    (upper, high, of_upper), (lower, low, of_lower) = sorted(labels, key=lambda label: label[1])
    missing = max(0.0, least - (low - high)) / 2
    return [(upper, high - missing, of_upper), (lower, low + missing, of_lower)]
