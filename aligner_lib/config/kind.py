"""What a kind of job is, written down once: the command line, settings, the workspace, charts, alarms and docs/metrics.md
read it here. Imports neither torch nor OmegaConf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aligner_lib.run_folder.alarms import Rule, not_finite

if TYPE_CHECKING:
    from omegaconf import DictConfig

Check = Callable[["DictConfig"], None]  # raises ConfigError for settings that don't go together


@dataclass(frozen=True)
class Metric:
    """A figure that a job logs, under one name or, where it is taken of several splits, under a few."""

    names: tuple[str, ...]  # a `*` stands for a name that the user has given, as that of an environment
    unit: str  # empty: a number without one
    definition: str
    healthy: str = ""  # what it does in a healthy run
    setting: str = ""  # what moves it


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that are told together: a section of docs/metrics.md."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def metric(names: str, unit: str, definition: str, healthy: str = "", setting: str = "") -> Metric:
    """metric("train/loss validation/loss", "nats", …): names are separated by spaces."""
    return Metric(tuple(names.split()), unit, definition, healthy, setting)


@dataclass(frozen=True)
class Line:
    """One line of a chart: the first of `metrics` that a run has."""

    label: str
    metrics: tuple[str, ...]
    minus: str = ""  # a metric to subtract: the margin of two rewards


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its lines, and what a healthy run shows in it, in a sentence.

    A metric with a `*` makes a line for each name of the user's that a run logs. With a second one, as in
    `train_environments/*/*`, there is a chart for each of the second names, with the title `*`.
    """

    title: str
    lines: tuple[Line, ...]
    hint: str = ""
    unit: str = ""
    exact: bool = False  # a schedule, not a measurement: never smoothed
    least: float = 0.0
    """The least height of its axis, in the lines' unit: lines that vary by less are drawn flat, not as mountains of rounding."""


SETTINGS = ("lr", "kl_coef")  # metrics that are no measurements, by the last part of their names


def chart(title: str, *lines: Line | Sequence[str], hint="", unit="", exact=False, least=0.0) -> Chart:
    """chart("Loss", ("train", "train/loss"), …): a line is a label and the metrics to look for, in order.

    It may also be a metric's name alone, or a Line. hint: what a healthy run shows. exact: never smoothed, as no setting is
    (SETTINGS). least: the least height of its axis.
    """
    drawn = tuple(map(_as_line, lines))
    is_setting = all(metric.rpartition("/")[2] in SETTINGS for line in drawn for metric in line.metrics)
    return Chart(title, drawn, hint, unit, exact or is_setting, least)


def _as_line(line: Line | Sequence[str]) -> Line:
    if isinstance(line, Line):
        return line
    label, *metrics = (line.rpartition("/")[2], line) if isinstance(line, str) else line
    return Line(label, tuple(metrics))


@dataclass(frozen=True)
class Component:
    """One of the jobs that a kind can be split into, each with resources of its own (a hetjob on Slurm)."""

    kind: str  # of the job
    prefix: str = ""  # of those of the whole's settings that are this component's, as in `critic.`
    folder: str = ""  # of its run, below the whole's
    found_by: str = ""  # the main component's setting that says this one's run folder


@dataclass(frozen=True)
class JobKind:
    """A kind of job. The settings.py of a folder in `aligner_lib/kinds`, or a module that $ALIGNER_KINDS names, holds one as KIND."""

    name: str  # in run.json, in profiles and in Python
    command: str  # `aligner COMMAND`
    summary: str  # the command's help, a sentence
    schema: type  # a dataclass of its settings, with bounds in the fields (config.schema.setting)
    build: str  # "module:function" that prepares the job from its settings (kinds.prepared_job.PreparedJob)
    metrics: tuple[MetricGroup, ...] = ()
    charts: tuple[Chart, ...] = ()
    alarms: tuple[Rule, ...] = (not_finite,)
    # the library's functions that a run may have its own in place of: name in settings → "module:function". The schema has a
    # setting `functions` then (config.functions)
    functions: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(
        default_factory=dict
    )  # setting → stage of the tutorial whose model it names
    data: Mapping[str, str | list[str]] = field(default_factory=dict)  # setting → formatted file (or files)
    components: Mapping[str, Component] = field(default_factory=dict)  # by name, the main one last
    checks: tuple[Check, ...] = ()  # beside the bounds: what several settings have to satisfy together
    # settings (or groups, with a dot at the end) that do nothing in such a job, and why; a user who sets one is told
    without_effect: Callable[[DictConfig], Mapping[str, str]] = lambda config: {}
    defaults: str = ""
    """The place of its defaults in a profile, as `ppo.critic`; empty: its name. Of another kind's section, a kind takes only
    the settings that it has."""
    run: str = "aligner_lib.jobs.run:run_job"  # "module:function" that runs it: (kind, config, profile)
    stage: int = 100  # its place where kinds are listed: from a model to an aligned one

    def metric_names(self) -> set[str]:
        """Every metric that a run of this kind logs, in one of its records at least; those with a `*` are apart."""
        return {name for name in self._names() if "*" not in name}

    def is_of_users_names(self, metric: str) -> bool:
        """Whether it is one of the metrics that are declared with a `*`, as `train_environments/sums/reward`."""
        return "*" in self.declared_as(metric)

    def declared_as(self, metric: str) -> str:
        """The name that a metric is declared under: of several with a `*` the one with the fewest; itself for none."""
        names = self._names()
        matching = [name for name in names if metric == name or fnmatchcase(metric, name)]
        return min(matching, key=lambda name: name.count("*"), default=metric)

    def _names(self) -> set[str]:
        return {name for group in self.metrics for metric in group.metrics for name in metric.names}


def load(place: str) -> Any:
    """What "module:name" names. Importing it may import torch."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
