"""Count the cores that a process may use, and set the number of threads of a job's ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.cgroups import cgroups

SPIN_COUNT = "1000"
"""Turns for which an idle OpenMP thread waits for work before the thread sleeps.

With libgomp's default, an idle thread spins for milliseconds on a core that another process needs. libgomp itself uses 1000
when a process has more threads than the machine has processors, but libgomp does not count the threads of other processes.
"""


def usable_cores(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """The number of cores that the process may use, at least 1. The limits are its affinity, its cgroups' CPU limits and
    LAB_THREADS.

    environ: LAB_THREADS, for instance a Hub's limit per user, lowers the number. root: contains proc/ and sys/ (in a test, a
    folder of the test). Raises ValueError when LAB_THREADS is not a whole number above 0.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [math.ceil(limit) for folder in cgroups("cpu", root) for limit in _limit(folder)]
    if setting := environ.get("LAB_THREADS"):
        if not setting.isdecimal() or int(setting) == 0:
            raise ValueError(
                f"LAB_THREADS={setting}: set a whole number of threads above 0, or leave LAB_THREADS unset"
            )
        limits.append(int(setting))
    return max(1, min([affinity, *limits]))


def thread_variables(ranks: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that set the number of OpenMP threads of each rank and how long idle threads spin.

    ranks: the ranks on this machine. A single rank with all cores of the machine keeps torch's default, a thread for each
    physical core. Existing values in the environment are kept.
    """
    cores = usable_cores(environ)
    return _thread_variables(
        ranks, min(cores, int(environ.get("SLURM_CPUS_ON_NODE", cores))) // ranks, environ
    )


def task_thread_variables(tasks: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Like `thread_variables`, for a Slurm task. tasks: the step's tasks on this node.

    Slurm may have bound the task to its own cores: then the task's affinity is its share of the node already.
    """
    cores = usable_cores(environ)
    share = int(environ.get("SLURM_CPUS_ON_NODE", cores)) // tasks
    return _thread_variables(tasks, min(cores, share), environ)


def _thread_variables(ranks: int, cores: int, environ: Mapping[str, str]) -> dict[str, str]:
    """cores: of each rank."""
    variables = {"GOMP_SPINCOUNT": SPIN_COUNT}
    if ranks > 1 or cores < (os.cpu_count() or 1):
        variables["OMP_NUM_THREADS"] = str(max(1, cores))
    return {name: environ.get(name, value) for name, value in variables.items()}


def _limit(folder: Path) -> Iterator[float]:
    """A cgroup's CPU limit, in cores; nothing without a limit."""
    try:
        if (file := folder / "cpu.max").exists():  # version 2: "200000 100000" or "max 100000"
            quota, period = file.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()  # version 1: -1 for no limit
            period = (folder / "cpu.cfs_period_us").read_text()
    except OSError:
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)
