"""Reads a kind's metrics.toml: metrics with unit and definition, charts, and the names of alarms. Does not import torch.

    include = ["../policy_gradient/metrics.toml"]   # other files, whose sections and charts can be named here
    sections = ["responses", "values"]              # the metrics that a run of the kind logs, in the order of docs/metrics.md
    charts = ["reward", "kl"]                       # the monitor's charts, in their order
    alarms = ["not_finite", "kl"]                   # functions of run_folder/alarms.py

    [section.values]
    title = "PPO, values"
    text = "…"

    [[section.values.metrics]]
    names = ["train_rollouts/values_mean"]          # `*` stands for a name that the user has given
    unit = "nats"                                   # without: a number without unit
    definition = "…"
    healthy = "…"                                   # the metric's values in a healthy run
    setting = "…"                                   # the settings that influence the metric

    [chart.kl]
    title = "KL to the reference"
    lines = [["train", "train_rollouts/kl"]]        # label, then metrics: the first metric that a run has is drawn
    hint = "…"
    least = 0.001                                   # least height of the axis: a number, or a name in [least]

A file that is only included by other files has no `sections`, `charts` and `alarms` of its own.
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
    """The sections, charts and least heights available to a file: its own definitions and the definitions of included files."""

    sections: dict[str, MetricGroup]
    charts: dict[str, Chart]
    least: dict[str, float]


def declared_in(folder: Path) -> dict[str, tuple]:
    """Read a kind's metrics.toml. Return JobKind's arguments `metrics`, `charts` and `alarms`."""
    path = folder / "metrics.toml"
    file, shelf = _parsed(path), shelf_of(path)
    return {
        "metrics": tuple(_section_named(name, shelf) for name in file.get("sections", ())),
        "charts": tuple(shelf.charts[name] for name in file.get("charts", ())),
        "alarms": tuple(_alarm(name) for name in file.get("alarms", ())),
    }


@cache
def shelf_of(path: Path) -> Shelf:
    """Collect the definitions in a file and in its included files, by name. The file's own definitions take precedence."""
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
    """Return the section with the given name. For a dict {name, only}, the section keeps only the listed metrics."""
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
