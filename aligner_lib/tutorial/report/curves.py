"""The training curves of the runs as small inline SVG charts."""

from __future__ import annotations

import html
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder

WIDTH, HEIGHT = 250, 130  # size of a panel in CSS pixels
LEFT, RIGHT, TOP, BOTTOM = 38, 8, 8, 18
DIGIT = 6.4  # width of a label's character; with longer labels, the plot begins further to the right


@dataclass(frozen=True)
class Panel:
    """A chart of the figure. metrics: the first metric is drawn strong, the others faint; held-out data comes first."""

    run: str
    title: str
    metrics: tuple[str, ...]


PANELS = (
    Panel("sft", "SFT: loss", ("validation/loss", "train/loss")),
    Panel("rm", "Reward model: accuracy", ("validation/acc", "train/acc")),
    Panel("ppo", "PPO: reward", ("val_rollouts/rewards", "train_rollouts/rewards")),
    Panel(
        "ppo", "PPO: KL to the reference", ("train_rollouts/kl",)
    ),  # only training rollouts have this metric
    Panel("dpo", "DPO: accuracy", ("validation/acc", "train/acc")),
    Panel("grpo", "GRPO: reward on sums", ("val_rollouts/rewards", "train_rollouts/rewards")),
)


def curves_figure(runs: Path, without: Collection[str] = ()) -> str:
    """An HTML figure with the charts of all runs in a folder, without those of some names; empty without runs."""
    shown = [panel for panel in PANELS if panel.run not in without]
    panels = "".join(_panel(panel, RunFolder(runs / panel.run)) for panel in shown)
    if not panels:
        return ""
    legend = "<figcaption>Horizontal axis: training step. Strong lines: held-out data. Faint lines: training data. The KL comes from the training rollouts.</figcaption>"
    return f'<figure class="picture"><div>{panels}</div>{legend}</figure>'


def _stretches(run: RunFolder, metric: str) -> list[list[tuple[int, float]]]:
    """The (step, value) of a metric. A NaN or infinite value splits the line."""
    by_finite = groupby(zip(*run.series(metric)), key=lambda point: isfinite(point[1]))
    return [list(points) for finite, points in by_finite if finite]


def _panel(panel: Panel, run: RunFolder) -> str:
    looks = ["strong"] + ["faint"] * (len(panel.metrics) - 1)
    of_metrics = [(look, _stretches(run, metric)) for look, metric in zip(looks, panel.metrics)]
    lines = [(look, line) for look, line in of_metrics if sum(map(len, line)) > 1]
    if not lines:
        return ""
    steps, values = zip(*(point for _, line in lines for stretch in line for point in stretch))
    (x0, x1), (y0, y1) = (min(steps), max(steps)), (min(values), max(values))
    y1 = y1 if y1 > y0 else y0 + 1
    digits = next(n for n in range(2, 18) if f"{y0:.{n}g}" != f"{y1:.{n}g}")
    heights = {f"{value:.{digits}g}": value for value in (y0, y1)}
    left = max(LEFT, 6 + DIGIT * max(map(len, heights)))

    def at(step: float, value: float) -> str:
        x = left + (step - x0) / max(x1 - x0, 1) * (WIDTH - left - RIGHT)
        return f"{x:.1f},{HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM):.1f}"

    # a line from a point to itself is a dot
    drawn = "".join(
        f'<polyline class="{look}" points="{" ".join(at(*point) for point in (stretch if stretch[1:] else stretch * 2))}"/>'
        for look, line in reversed(lines)
        for stretch in line
    )
    labels = "".join(
        f'<text x="{left - 6:g}" y="{at(x0, value).split(",")[1]}" dy="0.32em" text-anchor="end">{label}</text>'
        for label, value in heights.items()
    )
    labels += f'<text x="{left:g}" y="{HEIGHT - 4}">{x0}</text><text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{x1}</text>'
    (look, line), words = lines[0], html.escape(panel.title)
    of_training = " on training data" if look == "faint" else ""
    alt = f"{words}{of_training}: {line[0][0][1]:.3g} at first, {line[-1][-1][1]:.3g} at last"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">{drawn}{labels}</svg>'
    return f"<div><h3>{words}</h3>{svg}</div>"
