"""The registered schedulers, by name.

Two schedulers come with the project. Your own scheduler is a module with a class `SCHEDULER`. When the environment variable
ALIGNER_SCHEDULERS names the module (several are separated by commas), every `where=` accepts the scheduler's name.
"""

import os
from functools import cache
from importlib import import_module
from pathlib import Path

from cluster.findings import Finding
from cluster.scheduler import Scheduler

_MODULES = ("cluster.local", "cluster.slurm")
_PRINT = "print"
_PRINTED = "slurm"  # the scheduler whose script `where="print"` shows


def schedulers() -> dict[str, Scheduler]:
    """Every scheduler by its name. Raises ValueError for an entry of ALIGNER_SCHEDULERS without a scheduler."""
    return _schedulers(os.environ.get("ALIGNER_SCHEDULERS", ""))


def scheduler_of(where: str) -> Scheduler:
    """The scheduler named by `where`, also in 'print:NAME'; 'auto' is `nearest()`. Raises ValueError."""
    if where == "auto":
        return nearest()
    name = (where.partition(":")[2] or _PRINTED) if is_printed(where) else where
    if name not in schedulers():
        raise ValueError(
            f"where={where!r}: there is no scheduler {name!r}; known are {', '.join([*schedulers(), _PRINT])}. "
            "A scheduler of your own is known once ALIGNER_SCHEDULERS names its module"
        )
    return schedulers()[name]


def is_printed(where: str) -> bool:
    """Whether `where` asks only for the script: 'print' shows Slurm's script, 'print:NAME' the script of another scheduler."""
    return where == _PRINT or where.startswith(f"{_PRINT}:")


def nearest() -> Scheduler:
    """The first scheduler with other machines that accepts jobs from here. Without such a scheduler, this machine."""
    elsewhere = (scheduler for scheduler in _others() if not scheduler.unavailable())
    return next(elsewhere, schedulers()["local"])


def check(resources=None, shared: Path | str = ".", probe: bool = True, where: str = "auto") -> list[Finding]:
    r"""Check whether a scheduler is ready for a job. The other arguments are the arguments of `Scheduler.check`.

    where: a scheduler's name, or 'auto' for the first scheduler that answers, or Slurm when none answers. Prints nothing; use
    `print(*check(), sep="\n")`.
    """
    scheduler = scheduler_of(where)
    if where == "auto" and scheduler.on_this_machine:
        scheduler = schedulers()[_PRINTED]
    return scheduler.check(resources, shared, probe)


def availability() -> list[Finding]:
    """For each scheduler with other machines, whether the scheduler accepts jobs from here."""
    reasons = {scheduler.title: scheduler.unavailable() for scheduler in _others()}
    return [
        Finding(
            title,
            not reason,
            f"{reason}: jobs run on this machine" if reason else "jobs can be submitted",
            False,
        )
        for title, reason in reasons.items()
    ]


def _others() -> list[Scheduler]:
    return [scheduler for scheduler in schedulers().values() if not scheduler.on_this_machine]


@cache
def _schedulers(further: str) -> dict[str, Scheduler]:
    by_name: dict[str, Scheduler] = {}
    for module in [*_MODULES, *filter(None, map(str.strip, further.split(",")))]:
        scheduler = _scheduler_in(module)
        if scheduler.name in by_name:
            raise ValueError(
                f"ALIGNER_SCHEDULERS={further}: two schedulers have the name {scheduler.name!r}: rename either"
            )
        by_name[scheduler.name] = scheduler
    return by_name


def _scheduler_in(module: str) -> Scheduler:
    try:
        return import_module(module).SCHEDULER()
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        raise ValueError(
            f"ALIGNER_SCHEDULERS names {module}, which gives no scheduler ({error}): the module has to be on "
            "PYTHONPATH and hold SCHEDULER, a class with submit, status, cancel, requeue and script"
        ) from error
