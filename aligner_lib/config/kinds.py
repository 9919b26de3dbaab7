"""The registry of the kinds of job. Each kind is a folder in `aligner_lib/kinds`, whose settings.py declares the kind as KIND.

$ALIGNER_KINDS names further modules that hold a KIND, separated by commas, so a kind of your own needs no change here. The
registry imports kinds by name, because the kinds import `aligner_lib.config`. The registry does not import torch.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module

from aligner_lib.config.kind import Chart, JobKind
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.alarms import Rule, not_finite

FOLDERS = "aligner_lib.kinds"


def kinds() -> dict[str, JobKind]:
    """Return every kind by its name, in the order of the path from a model to an aligned model."""
    return _kinds(os.environ.get("ALIGNER_KINDS", ""))


def kind_of(name: str) -> JobKind:
    """Return the kind with this name. Raises ConfigError for an unknown name."""
    if name not in kinds():
        raise ConfigError(f"there is no kind of job {name!r}; there are {', '.join(kinds())}")
    return kinds()[name]


def kinds_that_train() -> list[str]:
    """The names of the kinds whose jobs train in steps."""
    return [name for name, kind in kinds().items() if kind.run == JobKind.run]


def charts_of(name: str) -> tuple[Chart, ...]:
    """Return the default charts for runs of a kind, with their metrics' units; () for an unknown kind."""
    if name not in kinds():
        return ()
    units = {
        name: metric.unit
        for group in kinds()[name].metrics
        for metric in group.metrics
        for name in metric.names
    }
    return tuple(
        replace(
            chart, unit=chart.unit or next(filter(None, (units.get(m) for m in chart.lines[0].metrics)), "")
        )
        for chart in kinds()[name].charts
    )


def alarms_of(name: str) -> tuple[Rule, ...]:
    """Return the alarms of a run of this kind. For an unknown kind, the only alarm is for values that are not finite."""
    return kinds()[name].alarms if name in kinds() else (not_finite,)


@cache
def _kinds(further: str) -> dict[str, JobKind]:
    named = [_kind_in(module) for module in filter(None, map(str.strip, further.split(",")))]
    by_name: dict[str, JobKind] = {}
    for kind in sorted([*_kinds_of_the_library(), *named], key=lambda kind: kind.stage):
        if kind.name in by_name:
            raise ConfigError(
                f"ALIGNER_KINDS={further}: two kinds of job have the name {kind.name!r}: rename either"
            )
        by_name[kind.name] = kind
    return by_name


def _kinds_of_the_library() -> Iterator[JobKind]:
    """The kinds that the folders of `aligner_lib.kinds` declare. A folder with shared parts declares none."""
    for folder in pkgutil.iter_modules(import_module(FOLDERS).__path__):
        if folder.ispkg:
            kind = getattr(import_module(f"{FOLDERS}.{folder.name}.settings"), "KIND", None)
            if kind is not None:
                yield kind


def _kind_in(module: str) -> JobKind:
    try:
        return import_module(module).KIND
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(
            f"ALIGNER_KINDS names {module}, which gives no kind of job ({error}): the module must be on PYTHONPATH "
            "and define KIND"
        ) from error
