"""How a job's parts find each other."""

import pytest

from cluster.rendezvous import announce, announced


@pytest.fixture(autouse=True)
def node(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu07")


def test_what_is_announced_is_found(tmp_path):
    assert announced(tmp_path, "critic") is None
    announce(tmp_path, "critic", port=5567)
    assert announced(tmp_path, "critic") == {"host": "gpu07", "port": 5567}


def test_the_last_announcement_counts(tmp_path, monkeypatch):
    announce(tmp_path, "critic", port=5567)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu08")
    announce(tmp_path, "critic", port=5568)
    assert announced(tmp_path, "critic") == {"host": "gpu08", "port": 5568}


def test_outside_of_slurm_the_host_is_loopback(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME")
    announce(tmp_path, "critic", port=1)
    assert announced(tmp_path, "critic")["host"] == "127.0.0.1"
