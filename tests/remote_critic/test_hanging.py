"""The actor's connection to a server that hangs, fails or does not fit: the server is a fake whose status is given."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import pytest
from forks import until

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import connection, discovery, hang_detection, serialization
from aligner_lib.remote_critic.connection import Endpoint, Lost, ServerConnection
from aligner_lib.remote_critic.connections import ServerConnections
from aligner_lib.remote_critic.errors import Refusal, in_words
from aligner_lib.remote_critic.pytriton_client import ServerUnreachable
from aligner_lib.run_folder.writer import RunWriter

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


@pytest.mark.parametrize(
    ("longest", "seconds", "new_longest"),
    [(None, 700.0, 700.0), (3.0, 2.0, 3.0), (3.0, 5.0, 5.0), (3.0, 300.0, 6.0), (0.5, 300.0, 3.0)],
)
def test_a_pause_at_most_doubles_the_time_that_a_command_may_take(longest, seconds, new_longest):
    """Beyond what half a minute allows anyway: after a pause, the watch still notices a server that hangs."""
    assert hang_detection.longest_with(longest, seconds) == new_longest


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


def test_a_refusal_that_no_answer_brings_reaches_the_waiting_call(fake):
    linked, status = fake
    call = linked.call("train", {})
    status["refusal"] = in_words(Refusal("it failed in train"))
    with pytest.raises(Refusal, match="the critic at here:1: it failed in train"):
        linked.wait_for(call)


BOTH = ["values", "rewards"]


@pytest.mark.parametrize(
    ("required", "status_of_server", "longest", "message"),
    [
        (BOTH, {}, 129, "encoder_seq_length=129 is beyond the 128 positions of .*, which has /runs/rm: set"),
        (["rewards"], {"gives": ["values"]}, 128, "gives values, but no rewards: .* of another kind; check its port$"),
        (["values"], {"gives": ["rewards"]}, 128, "gives rewards, but no values: .* of another kind; check its port, and"),
        (BOTH, {"tokenizer": "other"}, 128, r"here:1, which has /runs/rm, has another tokenizer than the policy in /policy"),
    ],
    ids=["too long", "no rewards", "no values", "another tokenizer"],
)  # fmt: skip
def test_a_server_that_does_not_fit_is_refused(fake, required, status_of_server, longest, message):
    _, status = fake
    status |= {"gives": BOTH, "positions": 128, "tokenizer": "same", "model": "/runs/rm"} | status_of_server
    endpoint = Endpoint("critic", "here", 1, None)
    tokenizer = SimpleNamespace(hash="same", folder="/policy")
    servers = ServerConnections({endpoint: {*required}}, tokenizer, "run", 10.0, 10.0, longest_sample=longest)
    with pytest.raises(UserError, match=message):
        servers.reach(lambda: None, lambda: False)


def test_a_run_goes_on_only_with_the_model_of_the_server_that_it_was_begun_with(fake, tmp_path):
    linked, status = fake
    status |= {"gives": BOTH, "positions": 128, "tokenizer": "same", "model": "/runs/rm"}
    begin = {"kind": "ppo", "config": {}, "seed": 0, "hashes": {"model": "m"}, "max_steps": 5}
    tokenizer = SimpleNamespace(hash="same", folder="/policy")
    words = "critic at here:1, which has /runs/rm, serves another model than .* was begun with.* original model, choose"
    for step, model, refused in ((0, "a", False), (2, "b", True), (2, "a", False), (0, "b", False)):
        status["hash"] = model
        fails = pytest.raises(UserError, match=words) if refused else nullcontext()
        with fails, RunWriter(tmp_path, **begin) as run:
            run.start_loading(step) if step else run.start(0)
            servers = ServerConnections({linked.where: {*BOTH}}, tokenizer, "run", 10.0, 10.0, 128, run)
            servers._check(servers.first, linked.connect())
            run.rewind(step)
            run.finish("stopped")
        assert run.folder.info["servers"] == {"critic": "a" if refused else model}
    del status["hash"]  # a server of an earlier release
    servers = ServerConnections({linked.where: {*BOTH}}, tokenizer, "run", 10.0, 10.0, 128, run)
    servers._check(servers.first, linked.connect())


def test_an_actor_names_its_run_by_a_mark_that_moves_with_the_folder(fake, tmp_path):
    link = SimpleNamespace(actor="run#1", ask=lambda _, request: serialization.value_of(request, "request"))
    with RunWriter(tmp_path, kind="ppo", config={}, seed=0, hashes={}, max_steps=5) as run:
        servers = ServerConnections({fake[0].where: {*BOTH}}, None, "run", 10.0, 10.0, 128, run)
        run.start(0)
        run.finish("stopped")
    assert servers.checkpoint("begin", link)["actor_created"] == run.folder.info["created"]
