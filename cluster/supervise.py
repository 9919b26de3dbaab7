"""Runs a job's ranks on this machine: all ranks start together, and all end when a rank fails.

python -m cluster.supervise FOLDER     reads FOLDER/spec.json, writes FOLDER/exit.json
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cluster import processes, record
from cluster.cores import thread_variables
from cluster.launch import STORE_VARIABLE, rank_variables
from cluster.rendezvous import free_port

_POLL_S = 0.05


@dataclass
class Rank:
    """A process of a component."""

    component: str
    rank: int
    process: subprocess.Popen


class Terminated(Exception):
    """The process received SIGTERM: the job is being cancelled, or the machine is shutting down."""


def rank_specifications(
    components: list[dict], stores: str
) -> Iterator[tuple[str, int, list[str], dict[str, str]]]:
    """Every rank of every component: the component's name, the rank, the rank's command and environment variables.

    stores: a new folder that only the user can read, for the files through which a component's ranks find each other.
    """
    for component in components:
        size, port = component["ranks"], free_port()
        for rank in range(size):
            variables = dict(component["variables"])
            if size > 1:  # a single rank may start ranks of its own
                variables |= rank_variables(rank, size, rank, size, "127.0.0.1", port)
                variables[STORE_VARIABLE] = f"{stores}/{component['name']}"
                variables |= thread_variables(size)
            yield component["name"], rank, component["command"], variables


def start(folder: Path, component: str, rank: int, command: list[str], variables: dict[str, str]) -> Rank:
    """Start a rank with its own log in `folder`. Raises OSError for a command that can't be run, and writes the error to the
    log."""
    with record.log_path(folder, component, rank).open("ab") as log:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # a SIGKILL of the supervisor would leave orphaned ranks
                preexec_fn=processes.signalled_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            log.write(f"{type(error).__name__}: cannot run {command[0]!r}: {error.strerror}\n".encode())
            raise
    return Rank(component, rank, process)


def watch(ranks: list[Rank], main: str, linger_s: float) -> dict:
    """Wait until the main component has ended or any rank has failed. Returns the content of exit.json.

    linger_s: seconds that the other components get to end after the main component.
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


def supervise(folder: Path) -> None:
    """Run the components of FOLDER/spec.json to their end, and write to FOLDER/exit.json how they ended."""
    spec = record.read_json(folder / "spec.json")
    assert spec, f"{folder}/spec.json is missing"

    def terminated(number, frame):
        raise Terminated

    signal.signal(signal.SIGTERM, terminated)
    ranks: list[Rank] = []
    with ExitStack() as until_the_ranks_end:
        try:
            stores = until_the_ranks_end.enter_context(tempfile.TemporaryDirectory(prefix="aligner-ranks-"))
            for specification in rank_specifications(spec["components"], stores):
                ranks.append(start(folder, *specification))
            outcome = watch(ranks, main=spec["components"][-1]["name"], linger_s=spec["linger_s"])
        except Terminated:
            outcome = {"returncode": -signal.SIGTERM}
        except OSError as error:
            outcome = {"returncode": 127, "note": str(error)}
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the job is ending already
        processes.end_job(str(folder), spare=(os.getpid(),))
    record.write_json(folder / "exit.json", outcome | {"time": time.time()})


if __name__ == "__main__":
    supervise(Path(sys.argv[1]))
