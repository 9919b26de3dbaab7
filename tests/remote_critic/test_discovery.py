"""Where a server says that it is, and where an actor looks: on one machine, on several with one home, under Slurm."""

import platform
import socket

import pytest

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import discovery

pytestmark = pytest.mark.remote_critic


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache that all machines of a cluster share."""
    monkeypatch.setattr(discovery, "cache_root", lambda: tmp_path / "cache")


def publish(run, host: str, token: str) -> None:
    run.mkdir()
    discovery.publish(run, "critic", host, 5567, token)


def token_at(host: str) -> str | None:
    return discovery.find("critic", host, 5567, None).token


def test_critics_at_one_port_of_two_machines_keep_their_tokens(tmp_path, monkeypatch):
    """Each machine has its own loopback."""
    publish(tmp_path / "away", "10.0.0.2", "away")
    publish(tmp_path / "first", "127.0.0.1", "first")
    first_machine = platform.node()
    monkeypatch.setattr(platform, "node", lambda: "second")
    assert token_at("127.0.0.1") is None
    publish(tmp_path / "second", "127.0.0.1", "second")
    assert token_at("127.0.0.1") == "second"
    monkeypatch.setattr(platform, "node", lambda: first_machine)
    assert token_at("127.0.0.1") == token_at("localhost") == "first"
    assert token_at("10.0.0.2") == "away"
    assert token_at("no-such-host.invalid") is None


def test_a_server_that_ends_removes_its_address_and_token_and_no_other_server_s(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):  # one after the other at one port
        publish(run, "127.0.0.1", run.name)
    discovery.withdraw(first, "critic", "127.0.0.1", 5567)
    assert discovery.find("critic", None, 5567, str(first)) is None and not (first / "token").exists()
    assert token_at("127.0.0.1") == "second"
    discovery.withdraw(second, "critic", "127.0.0.1", 5567)
    assert token_at("127.0.0.1") is None and not [*(tmp_path / "cache" / "servers").iterdir()]


def test_actors_find_a_server_that_cannot_write_the_cache_by_its_run_folder(tmp_path, caplog):
    (tmp_path / "cache").touch()  # a read-only folder stops no root
    publish(run := tmp_path / "run", "127.0.0.1", "mine")
    assert discovery.find("critic", None, 5567, str(run)).token == "mine"
    (message,) = caplog.messages
    assert "(Not a directory)" in message and message.endswith(f"remote_critic_rm.critic.run={run}")


def test_a_server_that_ends_late_leaves_its_successor_s_address_in_the_run_folder(tmp_path):
    publish(tmp_path / "run", "10.0.0.2", "successor")
    discovery.withdraw(tmp_path / "run", "critic", "10.0.0.1", 5567)
    assert discovery.find("critic", None, 5567, str(tmp_path / "run")).token == "successor"


# ---- under Slurm ----------------------------------------------------------------------------------------------------


@pytest.fixture
def job(monkeypatch):
    """A job of these nodes, on the first of them; the names lead to these addresses there."""

    def enter(names: dict[str, str], *node_lists: str, towards: str | None = None) -> None:
        def look_up(name: str) -> str:
            if name not in names:
                raise socket.gaierror(name)
            return names[name]

        monkeypatch.setattr(socket, "gethostbyname", look_up)
        monkeypatch.setattr(discovery, "_address_towards", lambda there: towards)
        monkeypatch.setenv("SLURMD_NODENAME", "a1")
        for number, nodes in enumerate(node_lists):
            monkeypatch.setenv("SLURM_JOB_NODELIST" + (f"_HET_GROUP_{number}" if number else ""), nodes)

    return enter


@pytest.mark.parametrize(
    ("names", "node_lists", "towards", "address"),
    [
        ({"a1": "10.0.0.1", "a2": "10.0.0.2"}, ["a[1-2]"], None, "10.0.0.1"),  # that of its name
        # of a hetjob, a name that is loopback on its own node; of a job, a name that is not known
        ({"a1": "127.0.1.1", "a2": "10.0.0.2"}, ["a1", "a1", "a2"], "10.0.0.1", "10.0.0.1"),
        ({"a2": "10.0.0.2"}, ["a[1-2]"], "10.0.0.1", "10.0.0.1"),
        # all nodes are this machine
        ({"a1": "127.0.0.1", "a2": "127.0.0.1"}, ["a1", "a1", "a2"], None, "127.0.0.1"),
        ({"a1": "127.0.1.1"}, ["a1", "a1", "a1"], None, "127.0.1.1"),
    ],
)
def test_a_node_listens_where_the_other_nodes_reach_it(job, names, node_lists, towards, address):
    job(names, *node_lists, towards=towards)
    assert discovery.listening_address(None) == address
    assert discovery.listening_address("10.9.9.9") == "10.9.9.9"


@pytest.mark.parametrize("names", [{"a1": "127.0.1.1", "a2": "10.0.0.2"}, {}])
def test_without_a_route_the_error_names_the_setting(job, names):
    job(names, "a[1-2]")
    with pytest.raises(
        UserError, match=r"the name of the node, a1, resolves to .* set trainer\.ppo\.address"
    ):
        discovery.listening_address(None)
