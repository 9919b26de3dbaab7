"""Where a server says that it is, and where an actor looks: on one machine, on several with one home, under Slurm."""

import platform
import socket

import pytest

from aligner_lib.two_jobs import address

pytestmark = pytest.mark.two_jobs


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache that all machines of a cluster share."""
    monkeypatch.setattr(address, "cache_root", lambda: tmp_path / "cache")


def publish(run, host: str, token: str) -> None:
    run.mkdir()
    address.publish(run, "critic", host, 5567, token)


def token_at(host: str) -> str | None:
    return address.find("critic", host, 5567, None).token


def test_two_critics_at_one_port_of_two_machines_keep_their_tokens(tmp_path):
    publish(tmp_path / "one", "10.0.0.1", "first")
    publish(tmp_path / "two", "10.0.0.2", "second")
    assert (token_at("10.0.0.1"), token_at("10.0.0.2")) == ("first", "second")


def test_each_machine_has_its_own_loopback(tmp_path, monkeypatch):
    publish(tmp_path / "one", "127.0.0.1", "first")
    here = platform.node()
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert token_at("127.0.0.1") is None
    publish(tmp_path / "two", "127.0.0.1", "second")
    assert token_at("127.0.0.1") == "second"
    monkeypatch.setattr(platform, "node", lambda: here)
    assert token_at("127.0.0.1") == "first"


def test_a_name_finds_what_its_address_published(tmp_path):
    publish(tmp_path / "one", "127.0.0.1", "first")
    assert token_at("localhost") == "first"
    assert token_at("no-such-host.invalid") is None
