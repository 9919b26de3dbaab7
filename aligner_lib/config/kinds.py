"""The registry of the kinds of job: each is a folder in `aligner_lib/kinds`, whose settings.py declares it as KIND.

$ALIGNER_KINDS names further modules that hold a KIND, separated by commas, so a kind of your own needs no change here. The
registry imports kinds by name, since kinds import `aligner_lib.config`. It imports no torch.
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
    """Every kind by its name, in the order of the way from a model to an aligned one."""
    return _kinds(os.environ.get("ALIGNER_KINDS", ""))


def kind_of(name: str) -> JobKind:
    """Raises ConfigError for a kind that there is not."""
    if name not in kinds():
        raise ConfigError(f"there is no kind of job {name!r}; there are {', '.join(kinds())}")
    return kinds()[name]


def charts_of(name: str) -> tuple[Chart, ...]:
    """The default charts of a run of this kind, with their metrics' units; none for one that is not known here."""
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
    """What is watched for in a run of this kind; of one that is not known here only that its figures are finite."""
    return kinds()[name].alarms if name in kinds() else (not_finite,)


@cache
def _kinds(further: str) -> dict[str, JobKind]:
    named = [_kind_in(module) for module in filter(None, map(str.strip, further.split(",")))]
    by_name: dict[str, JobKind] = {}
    for kind in sorted([*_kinds_of_the_library(), *named], key=lambda kind: kind.stage):
        if kind.name in by_name:
            raise ConfigError(
                f"ALIGNER_KINDS={further}: there are two kinds of job {kind.name!r}; rename one"
            )
        by_name[kind.name] = kind
    return by_name


def _kinds_of_the_library() -> Iterator[JobKind]:
    """Those that the folders of `aligner_lib.kinds` declare; a folder that kinds share declares none."""
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
            f"ALIGNER_KINDS names {module}, which gives no kind of job ({error}): it has to be on PYTHONPATH and hold KIND"
        ) from error
