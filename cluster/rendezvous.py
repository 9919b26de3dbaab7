"""How the parts of one job find each other: through the run folder, not through guessed host names.

critic    announce(run, "critic", port=5567)    once it is ready to answer
actor     said = announced(run, "critic")       None until then; said["host"], said["port"]

An announcement outlives who made it: whoever reads one has to see whether it still answers.
"""

import contextlib
import os
import random
import socket
from pathlib import Path

from cluster import record

_PORTS = range(10_000, 20_000)  # Slurm jobs' ranks meet at the next ones (cluster.launch)


def own_host() -> str:
    """The name under which this job's other nodes reach this one: Slurm's node name, else loopback."""
    return os.environ.get("SLURMD_NODENAME", "127.0.0.1")


def free_port() -> int:
    """A port of this machine that nobody listens on.

    It is none of those that the system hands out by itself (from 32768 on): any connection could have taken such a one
    before whoever asked for it listens.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"all ports from {_PORTS.start} to {_PORTS.stop - 1} are taken: end some of the jobs here")


def announce(run: Path | str, service: str, **details) -> None:
    """Say where `service` answers, as soon as it does: host, and details such as port=5567."""
    path = _path(run, service)
    path.parent.mkdir(parents=True, exist_ok=True)
    record.write_json(path, {"host": own_host(), **details})


def announced(run: Path | str, service: str) -> dict | None:
    """The service's last announcement; None when there is none."""
    return record.read_json(_path(run, service))


def _path(run: Path | str, service: str) -> Path:
    return Path(run) / "job" / f"{service}.json"
