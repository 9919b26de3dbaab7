"""A kind's metrics.toml: its metrics with unit and definition, its charts, and the names of its alarms. Imports no torch.

    include = ["../policy_gradient/metrics.toml"]   # files of sections and charts that this one names as well
    sections = ["responses", "values"]              # what a run of the kind logs, in the order of docs/metrics.md
    charts = ["reward", "kl"]                       # the monitor's charts, in their order
    alarms = ["not_finite", "kl"]                   # functions of run_folder/alarms.py

    [section.values]
    title = "PPO, values"
    text = "…"

    [[section.values.metrics]]
    names = ["train_rollouts/values_mean"]          # `*` stands for a name that the user has given
    unit = "nats"                                   # without: a number without unit
    definition = "…"
    healthy = "…"                                   # what a healthy run shows
    setting = "…"                                   # what moves the figure

    [chart.kl]
    title = "KL to the reference"
    lines = [["train", "train_rollouts/kl"]]        # label, then metrics: the first that a run has is drawn
    hint = "…"
    least = 0.001                                   # least height of the axis: a number, or a name in [least]

A file that only others include has no `sections`, `charts` and `alarms` of its own.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from aligner_lib.config.kind import Chart, Line, Metric, MetricGroup, chart
from aligner_lib.run_folder import alarms
from aligner_lib.run_folder.alarms import Rule


class Shelf(NamedTuple):
    """The sections, charts and least heights that a file can name: its own and those of the files that it includes."""

    sections: dict[str, MetricGroup]
    charts: dict[str, Chart]
    least: dict[str, float]


def declared_in(folder: Path) -> dict[str, tuple]:
    """What the folder's metrics.toml says of a kind, as JobKind's arguments `metrics`, `charts` and `alarms`."""
    path = folder / "metrics.toml"
    file, shelf = _parsed(path), shelf_of(path)
    return {
        "metrics": tuple(_section_named(name, shelf) for name in file.get("sections", ())),
        "charts": tuple(shelf.charts[name] for name in file.get("charts", ())),
        "alarms": tuple(_alarm(name) for name in file.get("alarms", ())),
    }


@cache
def shelf_of(path: Path) -> Shelf:
    """What a file and the files that it includes define, by name; its own definitions come first."""
    file = _parsed(path)
    included = [shelf_of((path.parent / name).resolve()) for name in file.get("include", ())]
    least = {name: size for shelf in included for name, size in shelf.least.items()} | file.get("least", {})
    sections = {name: section for shelf in included for name, section in shelf.sections.items()}
    charts = {name: drawn for shelf in included for name, drawn in shelf.charts.items()}
    return Shelf(
        sections | {name: _section(**table) for name, table in file.get("section", {}).items()},
        charts | {name: _chart(least, **table) for name, table in file.get("chart", {}).items()},
        least,
    )


@cache
def _parsed(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _section(title: str, metrics: list[dict], text: str = "") -> MetricGroup:
    return MetricGroup(title, text, tuple(_metric(**table) for table in metrics))


def _metric(
    names: list[str], definition: str, unit: str = "", healthy: str = "", setting: str = ""
) -> Metric:
    return Metric(tuple(names), unit, definition, healthy, setting)


def _section_named(name: str | dict, shelf: Shelf) -> MetricGroup:
    """A section by its name, or as {name, only}: with these metrics alone."""
    if isinstance(name, str):
        return shelf.sections[name]
    section, only = shelf.sections[name["name"]], name["only"]
    return MetricGroup(
        section.title,
        section.text,
        tuple(metric for metric in section.metrics if set(metric.names) & set(only)),
    )


def _chart(
    sizes: dict[str, float], title: str, lines: list, hint: str = "", least: float | str = 0.0
) -> Chart:
    drawn = [
        Line(line["label"], tuple(line["metrics"]), line["minus"]) if isinstance(line, dict) else line
        for line in lines
    ]
    return chart(title, *drawn, hint=hint, least=sizes[least] if isinstance(least, str) else least)


def _alarm(name: str) -> Rule:
    rule = getattr(alarms, name)
    assert isinstance(rule, Rule), f"run_folder/alarms.py has no alarm {name}"
    return rule
