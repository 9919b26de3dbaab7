"""A server that answers and works no more: one of its ranks hangs, and the threads that tell its status don't."""

import os
import signal
from types import SimpleNamespace
from typing import ClassVar

import pytest
from forks import until
from servers import Critic

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import connection, discovery, hang_detection, serialization
from aligner_lib.remote_critic.connection import Endpoint, Lost, ServerConnection
from aligner_lib.remote_critic.connections import ServerConnections
from aligner_lib.remote_critic.pytriton_client import ServerUnreachable

pytestmark = pytest.mark.remote_critic


class FakeConnection:
    """Tells its status, and answers nothing else while the test lasts."""

    status: ClassVar[dict] = {}

    def __init__(self, *_):
        pass

    def call(self, endpoint, arrays, parameters, timeout_s):
        until(lambda: endpoint == "status" or self.status.get("over"), "the end of the test")
        return serialization.text({"server": "1", "run": "nowhere", **self.status})


@pytest.fixture
def fake(monkeypatch):
    """A link to a fake server, and the server's status."""
    monkeypatch.setattr(connection, "PyTritonConnection", FakeConnection)
    monkeypatch.setattr(connection, "POLL_S", 0.01)
    monkeypatch.setattr(discovery, "find", lambda *_: discovery.ServerAddress("here", 1, "token", None))
    monkeypatch.setattr(FakeConnection, "status", {"doing": "idle", "doing_s": 0.2, "longest_s": {}})
    linked = ServerConnection(Endpoint("critic", "here", 1, None), "actor#1")
    linked.connect()
    yield linked, FakeConnection.status
    linked.close("the test is over")
    FakeConnection.status["over"] = True


@pytest.mark.parametrize(
    ("doing", "seconds", "longest", "gone"),
    [
        ("train", 29.0, {"train": 0.5}, False),  # never before half a minute
        ("train", 31.0, {"train": 0.5}, True),
        ("train", 199.0, {"train": 10.0}, False),
        ("train", 201.0, {"train": 10.0}, True),
        ("train", 599.0, {"values": 0.5}, False),  # the first of its kind
        ("train", 601.0, {"values": 0.5}, True),
        ("idle", 29.0, {}, False),
        ("idle", 31.0, {}, True),  # it looks for orders twice a second
        ("starting", 900.0, {}, False),
    ],
)
def test_what_is_overdue(doing, seconds, longest, gone):
    reason = hang_detection.overdue({"doing": doing, "doing_s": seconds, "longest_s": longest})
    assert (reason is not None) == gone


def test_a_call_to_a_server_that_hangs_is_lost_and_no_new_connection_is_made(fake):
    linked, status = fake
    call = linked.call("train", {})
    status |= {"doing": "train", "doing_s": 31.0, "longest_s": {"train": 0.5}}
    with pytest.raises(Lost, match=r"hangs: nothing followed 'train' for 31 s.*never took more than 0\.5 s"):
        linked.wait_for(call)
    with pytest.raises(ServerUnreachable, match="hangs"):
        linked.connect()
    status["doing_s"] = 2.0  # it goes on
    linked.connect()
    assert linked.lost is None


def test_a_call_is_sent_when_those_before_it_are_answered(fake, monkeypatch):
    linked, status = fake
    monkeypatch.setattr(FakeConnection, "sent", [], raising=False)
    answer = FakeConnection.call

    def note(self, endpoint, *rest, **more):
        if endpoint != "status":
            self.sent.append(endpoint)
        return answer(self, endpoint, *rest, **more)

    monkeypatch.setattr(FakeConnection, "call", note)
    values = linked.call("values", {})
    rewards = linked.call("rewards", {}, after=[values])
    until(lambda: FakeConnection.sent, "the first to be sent")
    assert FakeConnection.sent == ["values"] and not rewards.done()
    status["over"] = True  # every call is answered
    linked.wait_for(rewards)
    assert FakeConnection.sent == ["values", "rewards"]


def test_an_answer_is_waited_for_as_long_as_the_settings_say(fake):
    impatient = ServerConnection(Endpoint("critic", "here", 1, None), "actor#2", answer_s=0.3)
    impatient.connect()
    words = r"critic at here:1 is alive but has not answered for 0\.3 s \(trainer\.distributed_timeout_min"
    with pytest.raises(UserError, match=words):
        impatient.wait_for(impatient.call("train", {}))
    impatient.close("the test is over")


BOTH = ["values", "rewards"]


@pytest.mark.parametrize(
    ("asked", "gives", "longest", "words"),
    [
        (
            BOTH,
            BOTH,
            129,
            "encoder_seq_length=129 is beyond the 128 positions of .*, which has /runs/rm: set",
        ),
        (
            ["rewards"],
            ["values"],
            128,
            "gives values, but no rewards: the server is of another kind; check its port$",
        ),
        (
            ["values"],
            ["rewards"],
            128,
            "gives rewards, but no values: .* of another kind; check its port, and",
        ),
    ],
)
def test_a_server_that_does_not_fit_is_refused(fake, asked, gives, longest, words):
    _, status = fake
    status |= {"gives": gives, "positions": 128, "tokenizer": "same", "model": "/runs/rm"}
    at, tokenizer = Endpoint("critic", "here", 1, None), SimpleNamespace(hash="same")
    servers = ServerConnections({at: {*asked}}, tokenizer, "run", 10.0, 10.0, longest_sample=longest)
    with pytest.raises(UserError, match=words):
        servers.reach(lambda: None, lambda: False)


def test_a_stopped_second_rank_is_noticed_and_waited_for(jobs, monkeypatch):
    monkeypatch.setattr(hang_detection, "OVERDUE_S", 2.0)
    critic = Critic(jobs, "hanging")
    critic.start(ranks=2, model__tensor_model_parallel_size=2)
    critic.until_it_serves()
    linked = ServerConnection(Endpoint("critic", "127.0.0.1", critic.port, None), "hanging#1")
    linked.connect()
    (second,) = critic.other_ranks
    os.kill(second.pid, signal.SIGSTOP)
    try:
        until(lambda: linked.lost, "the actor to notice")
        assert "hangs" in linked.lost
    finally:
        os.kill(second.pid, signal.SIGCONT)
    until(lambda: _connects(linked), "the critic to go on")
    critic.run.request_stop()
    critic.until_it_ended()
    assert critic.run.status == "stopped"


def _connects(linked: ServerConnection) -> bool:
    try:
        linked.connect()
    except ServerUnreachable:
        return False
    return True
