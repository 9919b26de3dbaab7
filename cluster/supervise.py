"""Runs a job's ranks on this machine: all start together, and all end when one fails.

python -m cluster.supervise FOLDER     reads FOLDER/spec.json, writes FOLDER/exit.json
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster import processes, record
from cluster.launch import rank_variables, threads_per_rank
from cluster.rendezvous import free_port

_POLL_S = 0.05


@dataclass
class Rank:
    """One process of a component."""

    component: str
    rank: int
    process: subprocess.Popen


class Terminated(Exception):
    """This process got SIGTERM: the job is being cancelled, or the machine is shutting down."""


def _killed_with_parent() -> Callable[[], None] | None:
    """A function for the child that asks Linux to kill it when its parent dies; None elsewhere.

    A SIGKILL of the supervisor would otherwise leave ranks that no one ends.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    pr_set_pdeathsig = 1
    return lambda: libc.prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def start(folder: Path, components: list[dict]) -> list[Rank]:
    """Start every rank of every component, each with its own log in `folder`."""
    ranks = []
    for component in components:
        size, port = component["ranks"], free_port()
        for index in range(size):
            variables = {}  # a single rank may start ranks of its own
            if size > 1:
                variables = rank_variables(index, size, index, size, "127.0.0.1", port)
                variables |= {"OMP_NUM_THREADS": str(threads_per_rank(os.environ, size))}
            with record.log_path(folder, component["name"], index).open("ab") as log:
                process = _start_rank(component["command"], variables, log)
            ranks.append(Rank(component["name"], index, process))
    return ranks


def _start_rank(command: list[str], variables: dict[str, str], log) -> subprocess.Popen:
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_killed_with_parent(),
        )
    except OSError as error:
        log.write(f"{type(error).__name__}: cannot run {command[0]!r}: {error.strerror}\n".encode())
        raise


def watch(ranks: list[Rank], main: str, linger_s: float) -> dict:
    """Wait until the main component has ended or any rank has failed; returns the content of exit.json.

    linger_s: seconds that the other components get to end after the main one.
    """
    main_end = None
    while True:
        for rank in ranks:
            if rank.process.poll():
                return {"returncode": rank.process.returncode, "component": rank.component, "rank": rank.rank}
        running = [rank for rank in ranks if rank.process.returncode is None]
        if main_end is None and not any(rank.component == main for rank in running):
            main_end = time.monotonic()
        if not running or (main_end is not None and time.monotonic() - main_end > linger_s):
            return {"returncode": 0, "component": main, "rank": 0}
        time.sleep(_POLL_S)


def supervise(folder: Path) -> dict:
    """Run the components of FOLDER/spec.json to their end; returns the content of exit.json."""
    spec = record.read_json(folder / "spec.json")
    assert spec, f"{folder}/spec.json is missing"

    def terminated(number, frame):
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)
    try:
        ranks = start(folder, spec["components"])
        outcome = watch(ranks, main=spec["components"][-1]["name"], linger_s=spec["linger_s"])
    except Terminated:
        outcome = {"returncode": -signal.SIGTERM}
    except OSError as error:
        outcome = {"returncode": 127, "note": str(error)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are ending already
    processes.end_job(str(folder), spare=(os.getpid(),))
    return outcome


def main(argv: list[str]) -> None:
    """Supervise the job in the folder argv[0] and write its exit.json."""
    folder = Path(argv[0])
    outcome = supervise(folder)
    record.write_json(folder / "exit.json", outcome | {"time": time.time()})


if __name__ == "__main__":
    main(sys.argv[1:])
