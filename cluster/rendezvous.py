"""How the parts of one job find each other: through the run folder, not through guessed host names.

critic    announce(run, "critic", port=5567)           once it is ready to answer
actor     critic = find(run, "critic", timeout_s=600)  critic["host"], critic["port"]
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from cluster import record

_POLL_S = 0.2


class NotAnnounced(TimeoutError):
    """Nobody announced the service within the bound."""


def own_host() -> str:
    """The name under which this job's other nodes reach this one: Slurm's node name, else loopback."""
    return os.environ.get("SLURMD_NODENAME", "127.0.0.1")


def attempt() -> str:
    """Tells this start of the job from earlier ones, whose announcements are stale."""
    return os.environ.get("ALIGNER_JOB_ATTEMPT", "") or os.environ.get("ALIGNER_JOB_FOLDER", "")


def announce(run: Path | str, service: str, **details) -> None:
    """Say where `service` answers, as soon as it does: host, and details such as port=5567."""
    path = _path(run, service)
    path.parent.mkdir(parents=True, exist_ok=True)
    record.write_json(path, {"host": own_host(), "attempt": attempt(), **details})


def announced(run: Path | str, service: str) -> dict | None:
    """The service's last announcement, of whatever attempt: for who can tell for itself whether it still answers."""
    return record.read_json(_path(run, service))


def find(
    run: Path | str, service: str, timeout_s: float = 600.0, progress: Callable[[float], None] | None = None
) -> dict:
    """What the service announced in this attempt of the job. `progress(seconds waited)` is called while waiting.

    Raises NotAnnounced after timeout_s.
    """
    path, begun = _path(run, service), time.monotonic()
    while True:
        said = announced(run, service)
        if said is not None and said["attempt"] == attempt():
            return said
        waited = time.monotonic() - begun
        if waited > timeout_s:
            stale = " (an earlier attempt's announcement is there)" if said else ""
            raise NotAnnounced(
                f"{service} did not announce itself in {path} within {timeout_s:.0f} s{stale}; see its log beside it"
            )
        if progress:
            progress(waited)
        time.sleep(_POLL_S)


def _path(run: Path | str, service: str) -> Path:
    return Path(run) / "job" / f"{service}.json"
