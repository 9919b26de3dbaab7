"""Who can reach a server: from a network of its own, a default one cannot be reached, and a cluster's asks for the token."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from servers import Critic

pytestmark = pytest.mark.remote_critic

HERE, THERE = "10.213.77.1", "10.213.77.2"  # this machine's address and the other's, on a cable between them
ASK = """
import sys
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.pytriton_client import PyTritonConnection, ServerUnreachable
for host, port, token in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    try:
        answer = PyTritonConnection(host, int(port), token).call("status", serialization.text({}, "request"), {}, timeout_s=20)
        print("answered", serialization.value_of(answer)["updates"])
    except ServerUnreachable as error:
        print(error)
"""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())


@pytest.fixture(scope="module")
def other():
    """Another network namespace with a cable to this one; ask((host, port, token), …) runs clients there."""
    name, cable = f"aligner-{os.getpid()}", f"al{os.getpid()}"
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    try:
        _ip("netns", "add", name)
    except OSError as error:
        pytest.skip(f"network namespaces can't be made here: {error}")
    try:
        _ip("link", "add", f"{cable}a", "type", "veth", "peer", "name", f"{cable}b", "netns", name)
        _ip("addr", "add", f"{HERE}/24", "dev", f"{cable}a")
        _ip("link", "set", f"{cable}a", "up")
        _ip("-n", name, "addr", "add", f"{THERE}/24", "dev", f"{cable}b")
        _ip("-n", name, "link", "set", f"{cable}b", "up")

        def ask(*asked: tuple[str, int, str]) -> list[str]:
            words = [str(word) for one in asked for word in one]
            command = ["ip", "netns", "exec", name, sys.executable, "-c", ASK, *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.splitlines()

        yield SimpleNamespace(ask=ask)
    except OSError as error:
        pytest.skip(f"a cable between networks can't be made here: {error}")
    finally:
        subprocess.run(["ip", "link", "del", f"{cable}a"], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture(scope="module")
def on_a_cluster(jobs, other):
    """A critic that listens on the address of the network that it shares with the other machine."""
    critic = Critic(jobs, "on_a_cluster").start(trainer__ppo__address=HERE).until_it_serves()
    yield critic
    critic.process.terminate()
    critic.until_it_ended()


def test_a_cluster_s_server_answers_another_machine_with_the_token_only(on_a_cluster, other):
    token = (on_a_cluster.run.path / "token").read_text()
    port = on_a_cluster.port
    known, guessed = other.ask((HERE, port, token), (HERE, port, "guessed"))
    assert known == "answered 0"
    assert "refuses the token" in guessed
    assert on_a_cluster.listening() == {(HERE, port)}, "and not on loopback"


def test_a_default_server_can_t_be_reached_from_another_machine(live_critic, other):
    token = (live_critic.run.path / "token").read_text()
    answers = other.ask((HERE, live_critic.port, token), ("127.0.0.1", live_critic.port, token))
    assert len(answers) == 2
    for answer in answers:
        assert "is not listening (connection refused)" in answer or "can't be reached" in answer
