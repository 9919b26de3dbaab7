"""How a job's parts find each other."""

import socket
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from urllib.error import HTTPError, URLError
from urllib.request import OpenerDirector

import pytest

from cluster import rendezvous
from cluster.rendezvous import announce, announced, free_port, open_url


def test_the_last_announcement_counts_and_outside_of_slurm_the_host_is_loopback(tmp_path, monkeypatch):
    assert announced(tmp_path, "critic") is None
    for node, host, port in (("gpu07", "gpu07", 5567), ("gpu08", "gpu08", 5568), ("", "127.0.0.1", 1)):
        monkeypatch.setenv("SLURMD_NODENAME", node)
        if not node:
            monkeypatch.delenv("SLURMD_NODENAME")
        announce(tmp_path, "critic", port=port)
        assert announced(tmp_path, "critic") == {"host": host, "port": port}


def test_a_server_on_this_machine_is_reached_without_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("no_proxy", raising=False)
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert open_url(f"http://127.0.0.1:{server.server_port}/", timeout=30).status == 200
    with pytest.raises(URLError, match="refused"):
        open_url("http://example.invalid/", timeout=30)


def test_an_opener_serves_all_requests_with_the_same_proxies(monkeypatch):
    openers = []
    monkeypatch.setattr(OpenerDirector, "open", lambda opener, *_, **__: openers.append(opener))
    for proxy in ("http://a:1", "http://a:1", "http://b:1"):
        monkeypatch.setenv("http_proxy", proxy)
        open_url("http://example.invalid/", timeout=30)
    first, again, other = openers
    assert first is again is not other


@pytest.mark.parametrize("without_proxy", [False, True])
def test_a_redirect_is_refused_and_its_address_named(tmp_path, without_proxy):
    """A redirect would take a server's key to another server."""
    (tmp_path / "v1").mkdir()
    with HTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()  # /v1 redirects to /v1/
        url = f"http://127.0.0.1:{server.server_port}/v1"
        cure = f"give the address of the server at 127.0.0.1:{server.server_port}$"
        words = f"301: the server redirects to {url}/, .*: {cure}"
        with pytest.raises(HTTPError, match=words) as error:
            open_url(url, 30, without_proxy)
    assert error.value.read().decode() == error.value.reason


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_free_port_is_none_that_a_connection_could_take(monkeypatch, host):
    with socket.socket() as taken:
        taken.bind((host, free_port(host)))
        port = taken.getsockname()[1]
        assert 10_000 <= port < 20_000
        monkeypatch.setattr(rendezvous, "_PORTS", range(port, port + 1))
        with pytest.raises(OSError, match=f"all ports from {port} to {port} are taken"):
            free_port(host)
