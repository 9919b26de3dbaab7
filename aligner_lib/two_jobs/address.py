"""Where a server answers and the token that opens it: published by the server, found by the actor. No torch."""

from __future__ import annotations

import os
import platform
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.models.fetch import cache_root
from cluster import record
from cluster.rendezvous import announce, announced, own_host


@dataclass(frozen=True)
class Address:
    """token, run: None where they are not known yet."""

    host: str
    port: int
    token: str | None
    run: Path | None


def listening_address(setting: str | None) -> str:
    """The address to listen on: the one that was set, in a Slurm job the node's own, else loopback."""
    return setting or socket.gethostbyname(own_host())


def new_token(run: Path) -> str:
    """A random token for this start of a server; the one of an earlier start opens nothing any more."""
    (Path(run) / "token").unlink(missing_ok=True)
    return secrets.token_urlsafe(32)


def publish(run: Path, service: str, host: str, port: int, token: str) -> None:
    """Say where the service answers: in the run folder, and for those who know only the port in the cache.

    The token goes into the run folder too, for its owner's eyes only.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(Path(run) / "token", flags, 0o600), "w") as file:
        file.write(token)
    announce(run, service, port=port, address=host)
    pointer = _pointer(host, port)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    record.write_json(pointer, {"run": str(Path(run).absolute())})


def find(service: str, ip: str | None, port: int, run: str | None) -> Address | None:
    """The service's address by its run folder or by ip and port; None while it has not said where it is."""
    if run is not None:
        said = announced(run, service)
        return said and Address(said["address"], said["port"], _token(Path(run)), Path(run))
    pointer = record.read_json(_pointer(ip, port))
    run = Path(pointer["run"]) if pointer else None
    return Address(ip, port, run and _token(run), run)


def _token(run: Path) -> str | None:
    try:
        return (run / "token").read_text()
    except FileNotFoundError:
        return None


def _pointer(host: str, port: int) -> Path:
    """The cache may be shared by many machines, each of which has a loopback of its own."""
    address = _resolved(host) or host
    place = f"{platform.node()}-{address}" if _is_loopback(address) else address
    return cache_root() / "servers" / f"{place}-{port}.json"


def _resolved(host: str) -> str | None:
    """None where the name is not known here."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")
