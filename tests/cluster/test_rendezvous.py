"""How a job's parts find each other."""

import pytest

from cluster.rendezvous import NotAnnounced, announce, announced, find


@pytest.fixture(autouse=True)
def job(monkeypatch):
    monkeypatch.setenv("ALIGNER_JOB_ATTEMPT", "7.0")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu07")


def test_what_is_announced_is_found(tmp_path):
    announce(tmp_path, "critic", port=5567)
    assert find(tmp_path, "critic", timeout_s=0) == {"host": "gpu07", "attempt": "7.0", "port": 5567}


def test_an_earlier_attempts_announcement_counts_for_nothing(tmp_path, monkeypatch):
    announce(tmp_path, "critic", port=5567)
    monkeypatch.setenv("ALIGNER_JOB_ATTEMPT", "7.1")
    with pytest.raises(NotAnnounced, match="an earlier attempt's announcement is there"):
        find(tmp_path, "critic", timeout_s=0)


def test_waiting_is_bounded_and_tells_how_long(tmp_path):
    waited = []
    with pytest.raises(NotAnnounced, match="within 0 s"):
        find(tmp_path, "critic", timeout_s=0.3, progress=waited.append)
    assert waited and waited == sorted(waited)


def test_outside_of_slurm_the_host_is_loopback(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME")
    announce(tmp_path, "critic", port=1)
    assert find(tmp_path, "critic", timeout_s=0)["host"] == "127.0.0.1"


def test_the_last_announcement_of_any_attempt_can_be_read(tmp_path, monkeypatch):
    assert announced(tmp_path, "critic") is None
    announce(tmp_path, "critic", port=5567)
    monkeypatch.setenv("ALIGNER_JOB_ATTEMPT", "7.1")
    assert announced(tmp_path, "critic")["port"] == 5567
