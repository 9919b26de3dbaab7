"""The address and the token of a server: published by the server, found by the actor. The module does not import torch."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.fetch import cache_root
from cluster import record, rendezvous
from cluster.hostlist import expand
from cluster.rendezvous import announce, announced, own_host

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server. token, run: None while unknown."""

    host: str
    port: int
    token: str | None
    run: Path | None


def listening_address(setting: str | None) -> str:
    """The address to listen on: the address in the settings, in a Slurm job the node's own address, else loopback.

    Raises UserError when the node finds no address that the job's other nodes can reach.
    """
    if setting:
        return setting
    own = _resolved(own_host())
    if own is not None and not _is_loopback(own):
        return own
    # Debian and Ubuntu map a machine's own name to 127.0.1.1. The addresses of the other nodes show which network the nodes
    # share.
    others = {node: _resolved(node) for node in _nodes_of_the_job() if node != own_host()}
    away = [node for node, address in others.items() if address is None or not _is_loopback(address)]
    if own is not None and not away:
        return own
    for node in away:
        if others[node] is not None and (address := _address_towards(others[node])):
            return address
    raise UserError(
        f"the name of the node, {own_host()}, resolves to {own or 'no address'} here, which the job's other nodes "
        "can't reach: set trainer.ppo.address (of `serve-rm`: inference.address) to its address in the shared "
        "network"
    )


def new_token(run: Path) -> str:
    """A random token for a start of a server. The token of an earlier start becomes invalid."""
    (Path(run) / "token").unlink(missing_ok=True)
    return secrets.token_urlsafe(32)


def publish(run: Path, service: str, host: str, port: int, token: str) -> None:
    """Publish a service's address in the run folder, and in the cache for actors that know only the port.

    The token is also written into the run folder, readable only by its owner. A cache that can't be written, such as a
    JupyterHub's, is a warning: the run folder is enough for actors that know the folder.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(Path(run) / "token", flags, 0o600), "w") as file:
        file.write(token)
    announce(run, service, port=port, address=host)
    pointer = _pointer(host, port)
    try:
        pointer.parent.mkdir(parents=True, exist_ok=True)
        record.write_json(pointer, {"run": str(Path(run).absolute())})
    except OSError as error:
        logger.warning(
            f"the cache {pointer.parent} can't be written ({error.strerror}), so actors can't find the server by ip and port: "
            f"give them its run folder, such as remote_critic_rm.{service}.run={Path(run).absolute()}"
        )


def withdraw(run: Path, service: str, host: str, port: int) -> None:
    """Remove the files of `publish` when the service ends, except those of a successor in this run folder or at this port."""
    published = announced(run, service) or {}
    if (published.get("address"), published.get("port")) == (host, port):
        rendezvous.withdraw(run, service)
        (Path(run) / "token").unlink(missing_ok=True)
    pointer = _pointer(host, port)
    if record.read_json(pointer) == {"run": str(Path(run).absolute())}:
        pointer.unlink(missing_ok=True)


def find(service: str, ip: str | None, port: int, run: str | None) -> ServerAddress | None:
    """The service's address, by its run folder or by ip and port; None while the address is not published."""
    if run is not None:
        published = announced(run, service)
        return published and ServerAddress(
            published["address"], published["port"], _token(Path(run)), Path(run)
        )
    pointer = record.read_json(_pointer(ip, port))
    run = Path(pointer["run"]) if pointer else None
    return ServerAddress(ip, port, run and _token(run), run)


def _token(run: Path) -> str | None:
    try:
        return (run / "token").read_text()
    except FileNotFoundError:
        return None


def _pointer(host: str, port: int) -> Path:
    """The cache's file for a server. Several machines may share the cache, and each machine has its own loopback, so a loopback
    address is stored with the machine's name."""
    address = _resolved(host) or host
    place = f"{platform.node()}-{address}" if _is_loopback(address) else address
    return cache_root() / "servers" / f"{place}-{port}.json"


def _nodes_of_the_job() -> list[str]:
    """Names of the Slurm job's nodes, from all components of a hetjob."""
    lists = [os.environ[name] for name in sorted(os.environ) if name.startswith("SLURM_JOB_NODELIST")]
    return list(dict.fromkeys(node for nodes in lists for node in expand(nodes)))


def _address_towards(address: str) -> str | None:
    """This machine's own address on the route to `address`; None without a route. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        own = probe.getsockname()[0]
    return None if _is_loopback(own) else own


def _resolved(host: str) -> str | None:
    """The address of a host name; None for an unknown name."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")
