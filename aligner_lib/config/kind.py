"""The declaration of a kind of job. The command line, settings, the workspace, charts, alarms and docs/metrics.md read it.

Imports neither torch nor OmegaConf.
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

Check = Callable[["DictConfig"], None]
"""Raises ConfigError for settings that don't fit together."""


@dataclass(frozen=True)
class Metric:
    """A figure that a job logs, under one name or under one name for each split."""

    names: tuple[str, ...]
    """A `*` stands for a name of the user's, such as that of an environment."""
    unit: str
    """Empty: a number without a unit."""
    definition: str
    healthy: str = ""
    """How the figure behaves in a healthy run."""
    setting: str = ""
    """The settings that move the figure."""


@dataclass(frozen=True)
class MetricGroup:
    """Metrics documented in one section of docs/metrics.md."""

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
    minus: str = ""
    """A metric to subtract, as for the margin of two rewards."""


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its lines, and a sentence (`hint`) on its look in a healthy run.

    A metric with a `*` makes a line for each name of the user's that a run logs. With a second `*`, as in
    `train_environments/*/*`, each of the second names makes a chart, with the title `*`.
    """

    title: str
    lines: tuple[Line, ...]
    hint: str = ""
    unit: str = ""
    exact: bool = False
    """The lines are schedules, not measurements, and are never smoothed."""
    least: float = 0.0
    """The least height of its axis, in the lines' unit: lines that vary by less are drawn flat, not as mountains of rounding."""


SETTINGS = ("lr", "kl_coef")
"""Metrics that are settings and not measurements, by the last part of their names."""


def chart(title: str, *lines: Line | Sequence[str], hint="", unit="", exact=False, least=0.0) -> Chart:
    """chart("Loss", ("train", "train/loss"), …): a line is a label and the metrics to look for, in order.

    A line may also be a metric's name, or a Line. For hint, exact and least see Chart; a chart of SETTINGS is always exact.
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

    kind: str
    """The kind of the component's job."""
    prefix: str = ""
    """The prefix of the component's settings among the settings of the whole, as `critic.`."""
    folder: str = ""
    """The component's run folder, below the run folder of the whole."""
    found_by: str = ""
    """The main component's setting that names this component's run folder."""


@dataclass(frozen=True)
class TrainedModel:
    """A model that a job trains, as `aligner size` counts its memory and its work."""

    role: str
    """Of cluster.sizing.ROLES."""
    sequence: int
    """Tokens of the longest text."""
    micro_batch: int
    """Texts of a micro batch; pairs of a reward model."""
    batch: int
    """Texts that each step reads: both texts of a pair."""
    trained: int = 1
    """Forward and backward passes over each text."""
    scored: int = 0
    """Forward passes without gradients over each text, such as those of a frozen model of the same size."""
    generated: int = 0
    """Responses that are generated at a time; 0: the job only reads texts."""
    prefix: str = ""
    """The prefix of the model's settings in the job, as `critic.`."""


@dataclass(frozen=True)
class JobKind:
    """A kind of job. The settings.py of a folder in `aligner_lib/kinds`, or a module that $ALIGNER_KINDS names, holds it as KIND."""

    name: str
    """The name in run.json, in profiles and in Python."""
    command: str
    """`aligner COMMAND`."""
    summary: str
    """The command's help, a sentence."""
    schema: type
    """A dataclass of the settings, with bounds in the fields (config.schema.setting)."""
    build: str
    """"module:function" that prepares the job from its settings (kinds.prepared_job.PreparedJob)."""
    metrics: tuple[MetricGroup, ...] = ()
    charts: tuple[Chart, ...] = ()
    alarms: tuple[Rule, ...] = (not_finite,)
    functions: Mapping[str, str] = field(default_factory=dict)
    """The library's functions that a run may replace: name in settings → "module:function". The schema then has a setting
    `functions` (config.functions)."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Setting → the stage of the tutorial whose model it names."""
    data: Mapping[str, str | list[str]] = field(default_factory=dict)
    """Setting → formatted file, or files."""
    components: Mapping[str, Component] = field(default_factory=dict)
    """By name; the last one is the main component."""
    trains: Callable[[DictConfig], tuple[TrainedModel, ...]] = lambda config: ()
    """The models that a job with these settings trains; none: `aligner size` does not know the kind."""
    checks: tuple[Check, ...] = ()
    """Conditions on several settings together, beside the bounds of single settings."""
    without_effect: Callable[[DictConfig], Mapping[str, str]] = lambda config: {}
    """The settings (or groups, with a dot at the end) without effect in a job, with the reasons. The job tells a user who sets
    such a setting."""
    defaults: str = ""
    """The place of its defaults in a profile, as `ppo.critic`; empty: its name. Of another kind's section, a kind takes only
    the settings that it has."""
    run: str = "aligner_lib.jobs.run:run_job"
    """"module:function" that runs the job: (kind, config, profile)."""
    stage: int = 100
    """The kind's place in lists of kinds, in the order of the way from a model to an aligned model."""

    def metric_names(self) -> set[str]:
        """Every metric that a run of this kind logs in at least one of its records, without the metrics with a `*`."""
        return {name for name in self._names() if "*" not in name}

    def is_of_users_names(self, metric: str) -> bool:
        """Whether the metric is declared with a `*`, as `train_environments/sums/reward` is."""
        return "*" in self.declared_as(metric)

    def declared_as(self, metric: str) -> str:
        """The name in the metric's declaration. Of several matching names with a `*` it is the name with the fewest; a metric
        without a declaration has its own name."""
        names = self._names()
        matching = [name for name in names if metric == name or fnmatchcase(metric, name)]
        return min(matching, key=lambda name: name.count("*"), default=metric)

    def _names(self) -> set[str]:
        return {name for group in self.metrics for metric in group.metrics for name in metric.names}


def load(place: str) -> Any:
    """The object that "module:name" names. Importing its module may import torch."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
