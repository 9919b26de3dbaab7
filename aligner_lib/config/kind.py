"""The declaration of a kind of job. The command line, settings, the workspace, charts, alarms and docs/metrics.md read the
declaration.

This module imports neither torch nor OmegaConf.
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
    """A number that a job logs, under a single name or under a name for each split."""

    names: tuple[str, ...]
    """A `*` stands for a user's name, for example the name of an environment."""
    unit: str
    """Empty: a number without a unit."""
    definition: str
    healthy: str = ""
    """The metric's values in a healthy run."""
    setting: str = ""
    """The settings with an influence on the metric."""


@dataclass(frozen=True)
class MetricGroup:
    """Metrics with a common section in docs/metrics.md."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def metric(names: str, unit: str, definition: str, healthy: str = "", setting: str = "") -> Metric:
    """Create a Metric. Spaces separate the names in the first argument: metric("train/loss validation/loss", "nats", …)."""
    return Metric(tuple(names.split()), unit, definition, healthy, setting)


@dataclass(frozen=True)
class Line:
    """A line of a chart. The line shows the first of `metrics` that a run has."""

    label: str
    metrics: tuple[str, ...]
    minus: str = ""
    """A metric to subtract, for example for the margin between two rewards."""


@dataclass(frozen=True)
class Chart:
    """A chart: a title, lines, and a sentence (`hint`) on the chart's look in a healthy run.

    A metric with a `*` makes a line for each user-given name in the run's records. With a second `*`, as in
    `train_environments/*/*`, each of the second names makes a line, too, or with the title `*` a chart.
    """

    title: str
    lines: tuple[Line, ...]
    hint: str = ""
    unit: str = ""
    exact: bool = False
    """The lines are schedules, not measurements, and are never smoothed."""
    least: float = 0.0
    """The least range of the axis, in the lines' unit. Lines with less variation are drawn flat, so that rounding looks
    small."""


SETTINGS = ("lr", "kl_coef")
"""Metrics that are settings and not measurements, by the last part of their names."""


def chart(title: str, *lines: Line | Sequence[str], hint="", unit="", exact=False, least=0.0) -> Chart:
    """Create a Chart: chart("Loss", ("train", "train/loss"), …). A line is a label and a list of metrics to look for, in order.

    A line may also be a metric's name or a Line. For hint, exact and least see Chart; a chart of SETTINGS is always exact.
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
    """A part of a larger job, with its own resources (a component of a hetjob on Slurm)."""

    kind: str
    """The kind of the component's job."""
    prefix: str = ""
    """The prefix of the component's settings among the settings of the whole job, as `critic.`."""
    folder: str = ""
    """The component's run folder, below the run folder of the whole job."""
    found_by: str = ""
    """The main component's setting for the path of the component's run folder."""
    model: str = ""
    """The component's setting for its model, without which the component can't start."""
    port: str = ""
    """The component's setting for the port of its server, which the main component reads in the component's run folder."""


@dataclass(frozen=True)
class TrainedModel:
    """A trained model of a job, described for `aligner size`, which estimates memory and computation."""

    role: str
    """A name in cluster.sizing.ROLES."""
    sequence: int
    """Tokens of the longest text."""
    micro_batch: int
    """Texts in a micro batch; for a reward model, pairs."""
    batch: int
    """Texts that each step reads; a pair counts as two texts."""
    trained: int = 1
    """Forward and backward passes over each text."""
    scored: int = 0
    """Forward passes without gradients over each text, for example by a frozen model of the same size."""
    generated: int = 0
    """Responses that are generated at the same time; 0: the job only reads texts."""
    prefix: str = ""
    """The prefix of the model's settings in the job, as `critic.`."""
    adapter_rank: int = 0
    """The rank of the adapters that are trained instead of the weights; 0: all weights are trained."""
    adapted_layers: tuple[str, ...] = ()
    """The layers with adapters, by Megatron's names."""
    last_layers: int | None = None
    """The number of trained layers, counted from the last; None: all."""
    recomputed: int = 0
    """Full recomputation: model.activations_checkpoint_num_layers; 0: none, or selective."""
    recomputes_block: bool = False
    """model.activations_checkpoint_method=block."""
    sequence_parallel: bool = True
    """model.sequence_parallel. null stands for whether Transformer Engine is installed."""
    packed_tokens: int | None = None
    """Tokens of a packed micro batch; None: the micro batch has `micro_batch` texts."""


@dataclass(frozen=True)
class JobKind:
    """A kind of job. The settings.py of a folder in `aligner_lib/kinds`, or a module that $ALIGNER_KINDS names, defines it as
    KIND."""

    name: str
    """The name in run.json, in profiles and in Python."""
    command: str
    """`aligner COMMAND`."""
    summary: str
    """The command's help: a sentence."""
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
    """Setting → the tutorial stage whose model the setting names."""
    data: Mapping[str, str | list[str]] = field(default_factory=dict)
    """Setting → file or files in the library's data format."""
    components: Mapping[str, Component] = field(default_factory=dict)
    """By name; the last component is the main component."""
    trains: Callable[[DictConfig], tuple[TrainedModel, ...]] = lambda config: ()
    """The models trained by a job with these settings; empty: `aligner size` does not support the kind."""
    trains_server: Callable[[DictConfig], bool] = lambda config: False
    """Whether the job trains a server's model. The server's run folder has the model's checkpoints, so the run has no
    branches."""
    checks: tuple[Check, ...] = ()
    """Conditions on several settings together, in addition to the bounds of single settings."""
    without_effect: Callable[[DictConfig], Mapping[str, str]] = lambda config: {}
    """The settings (or groups, with a dot at the end) without effect in a job, with the reasons. The job logs a notice if the
    user sets any of them."""
    defaults: str = ""
    """The place of the kind's defaults in a profile, as `ppo.critic`; empty: the kind's name. In a section of another kind,
    settings without a counterpart in the kind's own schema are ignored."""
    run: str = "aligner_lib.jobs.run:run_job"
    """"module:function" that runs the job: (kind, config, profile)."""
    stage: int = 100
    """The kind's position in lists of kinds, which follow the path from a model to an aligned model."""

    def metric_names(self) -> set[str]:
        """All declared metrics without a `*`. A run of this kind logs each metric in at least one of its records."""
        return {name for name in self._names() if "*" not in name}

    def is_of_users_names(self, metric: str) -> bool:
        """Whether the metric is declared with a `*`, as `train_environments/sums/reward` is."""
        return "*" in self.declared_as(metric)

    def declared_as(self, metric: str) -> str:
        """Return the metric's name in its declaration; a metric without a declaration keeps its own name.

        If several declared names match, the result is the one with the fewest `*`, and of these the longest.
        """
        names = self._names()
        matching = [name for name in names if metric == name or fnmatchcase(metric, name)]
        return min(matching, key=lambda name: (name.count("*"), -len(name)), default=metric)

    def _names(self) -> set[str]:
        return {name for group in self.metrics for metric in group.metrics for name in metric.names}


def load(place: str) -> Any:
    """Import and return the object at "module:name". The import may import torch."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
