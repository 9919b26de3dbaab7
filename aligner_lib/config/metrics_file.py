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

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from aligner_lib.config.kind import Chart, Line, Metric, MetricGroup, chart
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder import alarms
from aligner_lib.run_folder.alarms import Rule

KEYS = ("include", "sections", "charts", "alarms", "section", "chart", "least")  # of a file


class Shelf(NamedTuple):
    """The sections, charts and least heights available to a file: its own definitions and the definitions of included files."""

    sections: dict[str, MetricGroup]
    charts: dict[str, Chart]
    least: dict[str, float]


def declared_in(folder: Path) -> dict[str, tuple]:
    """Read a kind's metrics.toml. Return JobKind's arguments `metrics`, `charts` and `alarms`.

    Raises ConfigError, with the file, for a file that is not TOML, for an unknown name, and for a table with other keys.
    """
    path = folder / "metrics.toml"
    file, shelf, rules = _parsed(path), shelf_of(path), _rules()
    with _errors_in(path):
        lists = {key: _listed(key, file.get(key, [])) for key in ("sections", "charts", "alarms")}
        return {
            "metrics": tuple(_section_named(name, shelf) for name in lists["sections"]),
            "charts": tuple(_named("chart", name, shelf.charts) for name in lists["charts"]),
            "alarms": tuple(_named("alarm", name, rules) for name in lists["alarms"]),
        }


@cache
def shelf_of(path: Path) -> Shelf:
    """Collect the definitions in a file and in its included files, by name. The file's own definitions take precedence.

    Raises ConfigError as `declared_in` does.
    """
    file = _parsed(path)
    with _errors_in(path):
        names = _listed("include", file.get("include", []))
    included = [shelf_of((path.parent / name).resolve()) for name in names]
    least = {name: size for shelf in included for name, size in shelf.least.items()}
    sections = {name: section for shelf in included for name, section in shelf.sections.items()}
    charts = {name: drawn for shelf in included for name, drawn in shelf.charts.items()}
    with _errors_in(path):
        least |= _table("least", file.get("least", {}))
        for name, table in _table("section", file.get("section", {})).items():
            sections[name] = _made(f"section.{name}", _section, table)
        for name, table in _table("chart", file.get("chart", {})).items():
            charts[name] = _made(f"chart.{name}", partial(_chart, least), table)
    return Shelf(sections, charts, least)


@cache
def _parsed(path: Path) -> dict:
    with _errors_in(path):
        file = tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := file.keys() - KEYS:
            raise ConfigError(f"there is no key {min(unknown)!r}; there are {', '.join(KEYS)}")
    return file


@contextmanager
def _errors_in(path: Path) -> Iterator[None]:
    """Raise ConfigError with the file for an error of its text."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ConfigError is a ValueError
        raise ConfigError(f"{path}: {error}") from error


def _made(header: str, make: Callable, table: object) -> Any:
    """Call `make` with a table's keys. Raises ConfigError, with the table's header, for a missing and for an unknown key."""
    try:
        return make(**_table(header, table))
    except TypeError as error:
        reason = re.sub(r"^[\w.]+\(\) ", "", str(error))  # without the name of Python's function
        raise ConfigError(f"[{header}]: {reason}") from error


def _table(header: str, value: object) -> dict:
    """Return a table. Raises ConfigError for any other value."""
    if not isinstance(value, dict):
        raise ConfigError(
            f"{header} is {value!r:.60}, not a table: write a header such as [chart.NAME] or [least]"
        )
    return value


def _listed(key: str, value: object) -> list:
    """Return a key's list. Raises ConfigError for any other value, such as a string, whose letters would become the items."""
    if not isinstance(value, list):
        raise ConfigError(f"{key} = {value!r} is not a list: write {key} = [{value!r}]")
    return value


def _named(title: str, name: str, there: Mapping[str, Any]) -> Any:
    """Look a name up. Raises ConfigError, with all names, for an unknown name."""
    if name not in there:
        raise ConfigError(f"there is no {title} {name!r}; there are {', '.join(there) or 'none'}")
    return there[name]


def _rules() -> dict[str, Rule]:
    """All alarms by name."""
    return {name: rule for name, rule in vars(alarms).items() if isinstance(rule, Rule)}


def _section(title: str, metrics: list[dict], text: str = "") -> MetricGroup:
    return MetricGroup(title, text, tuple(_metric(**table) for table in _listed("metrics", metrics)))


def _metric(
    names: list[str], definition: str, unit: str = "", healthy: str = "", setting: str = ""
) -> Metric:
    return Metric(tuple(_listed("names", names)), unit, definition, healthy, setting)


def _section_named(name: str | dict, shelf: Shelf) -> MetricGroup:
    """Return the section with the given name. For a dict {name, only}, the section keeps only the listed metrics."""
    if isinstance(name, str):
        return _named("section", name, shelf.sections)
    return _made("sections", partial(_part_of_section, shelf), name)


def _part_of_section(shelf: Shelf, name: str, only: list[str]) -> MetricGroup:
    section = _named("section", name, shelf.sections)
    metrics = {name: metric for metric in section.metrics for name in metric.names}
    kept = [_named("metric", name, metrics) for name in _listed("only", only)]
    return MetricGroup(
        section.title, section.text, tuple(metric for metric in section.metrics if metric in kept)
    )


def _chart(
    sizes: dict[str, float], title: str, lines: list, hint: str = "", least: float | str = 0.0
) -> Chart:
    drawn = [_line(**line) if isinstance(line, dict) else line for line in _listed("lines", lines)]
    least = _named("size in [least]", least, sizes) if isinstance(least, str) else least
    return chart(title, *drawn, hint=hint, least=least)


def _line(label: str, metrics: list[str], minus: str = "") -> Line:
    return Line(label, tuple(_listed("metrics", metrics)), minus)
