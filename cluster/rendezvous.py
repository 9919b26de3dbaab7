"""The components of a job find each other through the run folder, without guessed host names.

The critic calls announce(run, "critic", port=5567) as soon as it can answer. The actor polls announced(run, "critic"), which
returns None at first, and after the announcement a dict with "host" and "port".

An announcement may be older than the current attempt, so the reader must check that the service still answers.
"""

import contextlib
import functools
import io
import os
import random
import socket
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from cluster import record

_PORTS = range(10_000, 20_000)  # the next 10,000 are for MASTER_PORT on Slurm (cluster.launch)


def own_host() -> str:
    """The name by which the job's other nodes reach the current node: Slurm's node name, else loopback."""
    return os.environ.get("SLURMD_NODENAME", "127.0.0.1")


def free_port(host: str = "127.0.0.1") -> int:
    """A free port at this machine's address `host`. Raises OSError when all ports are taken.

    The port lies below the range that the system assigns to outgoing connections (from 32768 on), so no connection takes the
    port before the caller listens there.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(f"all ports from {_PORTS.start} to {_PORTS.stop - 1} are taken: end some of the jobs here")


def open_url(request: urllib.request.Request | str, timeout: float, without_proxy: bool = False):
    """Open a URL as `urllib.request.urlopen` does, but reach a server on this machine without a proxy, and follow no redirect.

    timeout: seconds. A proxy in the environment (`http_proxy`) cannot reach the loopback address. without_proxy: use no proxy
    for other machines either. Raises HTTPError, which names the new address, for a redirect.
    """
    host = urlsplit(request if isinstance(request, str) else request.full_url).hostname or ""
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    proxies = {} if is_local or without_proxy else urllib.request.getproxies()
    return _opener(tuple(proxies.items())).open(request, timeout=timeout)


@functools.cache
def _opener(proxies: tuple[tuple[str, str], ...]) -> urllib.request.OpenerDirector:
    """Opens URLs through proxies, given as (scheme, URL). Kept, because a new opener loads the system's certificates."""
    return urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler(dict(proxies)))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the request's headers, and thus a server's key, to the new address."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        fp.close()
        refusal = (
            f"the server redirects to {newurl}, and redirects are not followed, because a request may carry a key: give "
            f"the address of the server at {urlsplit(newurl).netloc}"
        )
        # a caller shows either the reason or the text of an error
        raise HTTPError(req.full_url, code, refusal, headers, io.BytesIO(refusal.encode()))


def announce(run: Path | str, service: str, **details) -> None:
    """Publish the address of `service`: the host, and details such as port=5567. The service must already answer."""
    path = _path(run, service)
    path.parent.mkdir(parents=True, exist_ok=True)
    record.write_json(path, {"host": own_host(), **details})


def withdraw(run: Path | str, service: str) -> None:
    """Remove the announcement of an ended service."""
    _path(run, service).unlink(missing_ok=True)


def announced(run: Path | str, service: str) -> dict | None:
    """The service's last announcement; None without an announcement."""
    return record.read_json(_path(run, service))


def _path(run: Path | str, service: str) -> Path:
    return Path(run) / "job" / f"{service}.json"
