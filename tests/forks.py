"""Processes that have Megatron imported already: forks of one server that imports it once, as importing takes seconds.

Real processes: they can be killed, and several of them form the ranks of a layout over gloo.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from cluster.launch import STORE_VARIABLE, rank_variables
from cluster.rendezvous import free_port

BOUND_S = 300.0  # nothing takes so long, except on a machine that is busy with something else

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "aligner_lib.jobs.run",
        "aligner_lib.kinds.ppo.trainer",
        "aligner_lib.kinds.grpo.trainer",
        "aligner_lib.kinds.sft.trainer",
        "aligner_lib.kinds.rm.trainer",
        "aligner_lib.remote_critic.client",
        "aligner_lib.jobs.serve_critic",
        "aligner_lib.remote_critic.command_loop",
        "hydra",
        "pytriton.client",
        "pytriton.triton",
    ]
)


def skip_without_pytriton() -> None:
    if importlib.util.find_spec("pytriton") is None:
        pytest.skip("PyTriton is not installed; it needs Linux with Python 3.11 or 3.12")


def start(
    work: Callable, *arguments: object, log: Path, environment: dict[str, str] | None = None
) -> BaseProcess:
    """Begin work(*arguments) in a process of its own, which writes its output and its traceback to `log`."""
    process = _forks.Process(target=_work, args=(work, arguments, log, environment or {}))
    process.start()
    return process


def finish(process: BaseProcess, log: Path) -> None:
    """Wait for its end; fails with the log unless it ended well."""
    process.join(BOUND_S)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"not within {BOUND_S} s:\n{log.read_text()}")
    assert process.exitcode == 0, f"exit code {process.exitcode}:\n{log.read_text()}"


def run(work: Callable, *arguments: object, log: Path) -> None:
    finish(start(work, *arguments, log=log), log)


def start_ranks(ranks: int, work: Callable, *arguments: object, folder: Path) -> list[BaseProcess]:
    """Begin work(*arguments) as so many ranks, with the environment that our launchers give them; logs go to the folder."""
    port, store = free_port(), {STORE_VARIABLE: tempfile.mktemp(prefix="store-", dir=folder)}
    return [
        start(
            work,
            *arguments,
            log=folder / f"rank{rank}.log",
            environment=rank_variables(rank, ranks, rank, ranks, "127.0.0.1", port) | store,
        )
        for rank in range(ranks)
    ]


def finish_ranks(processes: list[BaseProcess], folder: Path) -> None:
    """Wait for the end of all; fails with the log of the first that does not end well, and ends the others."""
    try:
        for rank, process in enumerate(processes):
            finish(process, folder / f"rank{rank}.log")
    finally:
        for process in processes:
            process.kill()


def run_ranks(ranks: int, work: Callable, *arguments: object, folder: Path) -> None:
    finish_ranks(start_ranks(ranks, work, *arguments, folder=folder), folder)


def until(condition: Callable[[], object], what: str, bound_s: float = BOUND_S):
    """The condition's first true value; fails when there is none within the bound."""
    deadline, pause = time.monotonic() + bound_s, threading.Event()
    while time.monotonic() < deadline:
        if value := condition():
            return value
        pause.wait(0.01)  # what is waited for needs the core
    raise AssertionError(f"not within {bound_s} s: {what}")


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _work(work: Callable, arguments: tuple, log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        import torch

        torch.set_num_threads(1)  # as many ranks as cores; and bitwise comparisons need equal sums
        try:
            work(*arguments)
        except BaseException:
            with contextlib.suppress(OSError):
                traceback.print_exc(file=file)
                file.flush()
            raise
