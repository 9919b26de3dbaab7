"""The request queue alone, without a server: no train step is taken twice, none is skipped, and requests keep to one actor."""

import threading
import time
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
import torch
from forks import until

from aligner_lib.megatron import parallel
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.errors import NotReady, Refusal, from_words
from aligner_lib.remote_critic.hang_detection import overdue
from aligner_lib.remote_critic.session import ActorRun, ActorSession
from aligner_lib.rollouts.records import CriticExperience
from cluster.record import write_json

pytestmark = pytest.mark.remote_critic


class FakeShelf:
    """Remembers what was logged and saved."""

    def __init__(self):
        self.logged, self.saved = [], []

    def latest(self):
        return 0

    def numbers(self):
        return self.saved

    def owner(self):
        return None

    def tmp_dir(self, number):
        return f"step {number}"

    def accept(self, tmp_dir, number, previous, actor, way_back):
        self.saved.append(number)
        self.owner = lambda: actor
        self.needed = (previous, way_back)

    def find(self, number):
        return f"step {number}"

    def forget_after(self, number):
        self.saved = [there for there in self.saved if there <= number]

    def log(self, number, result, lr, seconds):
        self.logged.append((number, lr))


class FakeWorker:
    def __init__(self):
        self.critic = SimpleNamespace(save=lambda folder: None, load=lambda folder: None)

    def train(self, experience, lr):
        return {"loss": lr, "grad_norm": 1.0}


@pytest.fixture
def request_queue(tmp_path):
    """A request queue whose commands are executed, until the test ends."""
    from aligner_lib.remote_critic.command_loop import serve
    from aligner_lib.remote_critic.request_queue import RequestQueue
    from aligner_lib.remote_critic.session import ServiceEnd

    request_queue, over = RequestQueue(FakeShelf(), ActorSession(600), 100, {}), threading.Event()

    def end() -> ServiceEnd | None:
        return ServiceEnd("stopped", "") if over.is_set() else None

    def work():
        with suppress(Exception):  # the actor gets its message
            serve(FakeWorker(), request_queue, end, tmp_path)

    loop = threading.Thread(target=work)
    loop.start()
    ask(request_queue, "begin")
    yield request_queue
    over.set()
    loop.join(30)
    assert not loop.is_alive()


def ask(request_queue, kind: str, actor: str = "run#1", run: str = "run", **details) -> dict:
    request = serialization.text({"kind": kind, "actor": actor, "actor_run": run, **details}, "request")
    (answer,) = request_queue.answer_checkpoint([({"actor": actor}, request)])
    return result_of(answer)


def train(request_queue, number: int, lr: float = 0.5, actor: str = "run#1") -> dict:
    experience = CriticExperience(
        tokens=torch.ones((2, 3), dtype=torch.int64),
        lengths=torch.tensor([3, 3]),
        response_mask=torch.ones(2, 2, dtype=torch.bool),
        values=torch.ones(2, 2),
        returns=torch.ones(2, 2),
    )
    parameters = {"actor": actor, "number": number, "lr": lr.hex()}
    (answer,) = request_queue.answer_train([(parameters, serialization.pack_experience(experience))])
    return result_of(answer)


def result_of(answer: dict) -> dict:
    content = serialization.value_of(answer)
    if "problem" in content:
        raise from_words(content["problem"])
    return content["result"]


def test_a_train_step_is_neither_repeated_nor_skipped(request_queue):
    assert train(request_queue, 1, lr=0.25) == {"loss": 0.25, "grad_norm": 1.0}
    for number in (1, 3):
        with pytest.raises(NotReady, match=f"made 1 train steps, so cannot make number {number}"):
            train(request_queue, number, lr=0.75)
    assert request_queue.checkpoints.logged == [(1, 0.25)]
    assert request_queue.updates == 1


def test_a_global_batch_without_a_reward_is_a_step_without_metrics(request_queue, monkeypatch):
    monkeypatch.setattr(FakeWorker, "train", lambda *_: {})
    assert train(request_queue, 1) == {}
    assert (request_queue.updates, request_queue.checkpoints.logged) == (1, [])


def test_the_status_says_how_long_a_command_takes_and_how_long_its_kind_took_before(
    request_queue, monkeypatch
):
    assert request_queue.status()["longest_s"].keys() <= {"begin"}
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(FakeWorker, "train", lambda *_: begun.set() or (go_on.wait(30) and {"loss": 1.0}))
    actor = threading.Thread(target=train, args=(request_queue, 1))
    actor.start()
    assert begun.wait(30)
    assert request_queue.status()["doing"] == "train"
    until(lambda: request_queue.status()["doing_s"] >= 0.3, "three tenths of a second", bound_s=30)
    go_on.set()
    actor.join(30)
    until(lambda: request_queue.status()["doing"] == "idle", "the end of the command", bound_s=30)
    assert request_queue.status()["longest_s"]["train"] >= 0.25  # the status is rounded to tenths


def test_a_rank_that_takes_no_more_commands_is_overdue(request_queue, monkeypatch):
    """The main thread waits for the rank in a collective operation, and other threads still answer with the status."""
    blocked, go_on = threading.Event(), threading.Event()

    def wait_for_the_rank(command):
        blocked.set()
        go_on.wait(30)
        return command

    monkeypatch.setattr(parallel, "from_first_rank", wait_for_the_rank)
    assert blocked.wait(30)
    request_queue._turn -= 31.0
    assert "hangs: nothing followed 'idle'" in overdue(request_queue.status())
    go_on.set()
    until(lambda: overdue(request_queue.status()) is None, "the next command", bound_s=30)


def test_what_cannot_be_trained_on_is_refused(request_queue):
    request_queue.replicas = 3
    with pytest.raises(Refusal, match="a global batch of 2 samples leaves some of its 3 data-parallel ranks"):
        train(request_queue, 1)
    request_queue.replicas, request_queue.vocab_size = 1, 1
    with pytest.raises(Refusal, match="token 0 of sample 0 of 2 is 1, but the model knows only 0 to 0"):
        train(request_queue, 1)
    assert request_queue.updates == 0


@pytest.mark.parametrize(
    ("note", "kind", "message"),
    [
        (None, NotReady, "it has lost one of its ranks in train: their logs in"),
        ('{"words": "it failed with KeyError: 7"}', Refusal, "its rank 3: it failed with KeyError: 7"),
    ],
)
def test_another_rank_s_end_is_told_with_its_reason_if_it_left_one(
    request_queue, tmp_path, monkeypatch, note, kind, message
):
    def fail(*_):
        if note is not None:
            (tmp_path / "failed_rank_3.json").write_text(note)
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")

    monkeypatch.setattr(FakeWorker, "train", fail)
    with pytest.raises(kind, match=message) as raised:
        train(request_queue, 1)
    assert type(raised.value) is kind
    with pytest.raises(kind, match=message):  # later requests get it, too
        ask(request_queue, "begin")
    request_queue.answer_status([({"actor": "run#1"}, {})])  # the service waits until the actor has read it


def test_a_pause_of_the_process_does_not_blind_the_watch(request_queue):
    """hang_detection's rule for the longest time: test_hanging.py."""
    train(request_queue, 1)
    until(lambda: request_queue.status()["doing"] == "idle", "the end of the command", bound_s=30)
    request_queue.longest["train"] = 0.5
    request_queue.doing, request_queue._turn = "train", time.monotonic() - 300.0
    request_queue._now("idle")
    assert request_queue.longest["train"] == 3.0


def test_a_save_is_of_the_steps_that_the_actor_counts_and_going_back_forgets_what_came_later(request_queue):
    train(request_queue, 1)
    with pytest.raises(NotReady, match="the server has made 1 train steps, but 2 were to be saved"):
        ask(request_queue, "save", updates=2, previous=0)
    assert ask(request_queue, "save", updates=1, previous=0)["checkpoints"] == [1]
    train(request_queue, 2)
    ask(request_queue, "save", updates=2, previous=1, way_back=0)
    assert request_queue.checkpoints.needed == (1, 0)  # the checkpoints that the actor may come back to
    status = ask(request_queue, "load", updates=1)
    assert (status["updates"], status["checkpoints"]) == (1, [1])
    assert train(request_queue, 2, lr=0.125)["loss"] == 0.125


def test_another_actor_is_turned_away_and_the_same_run_started_again_is_not(request_queue):
    with pytest.raises(Refusal, match="the server serves another actor, run, last heard"):
        ask(request_queue, "begin", actor="other#1", run="other")
    ask(request_queue, "begin", actor="run#2")
    with pytest.raises(NotReady, match="the actor has not begun a session"):
        train(request_queue, 1, actor="run#1")
    assert train(request_queue, 1, actor="run#2")["grad_norm"] == 1.0


@pytest.mark.parametrize(
    ("begun", "again", "is_same"),
    [
        (("old", 1.5), ("moved", 1.5), True),
        (("old", 1.5), ("old", 2.5), True),  # begun anew
        (("old", 1.5), ("other", 2.5), False),
        (("old", None), ("old", 1.5), True),  # a checkpoint of an earlier release
        (("old", None), ("other", None), False),
    ],
)
def test_the_checkpoints_serve_their_actor_also_in_another_folder(request_queue, begun, again, is_same):
    request_queue.session.actor = None  # the server is started again
    ask(request_queue, "begin", run=begun[0], actor_created=begun[1])
    ask(request_queue, "save", updates=0, previous=0)
    request_queue.session.actor = None
    refused = pytest.raises(Refusal, match="checkpoints belong to another actor, old: start the critic")
    with nullcontext() if is_same else refused:
        ask(request_queue, "begin", run=again[0], actor_created=again[1])


def test_a_request_after_the_end_is_for_the_next_server(request_queue):
    request_queue.close(NotReady("it is over"))
    request_queue.close(Refusal("and over again"))
    with pytest.raises(NotReady, match="it is over"):
        train(request_queue, 1)


@pytest.mark.parametrize(
    ("started", "status", "message"),
    [
        (0.0, "finished", "is done"),
        (2.0, "stopped", "ended before it began: see the actor's log"),
        (None, "stopped", "ended before it began: see the actor's log"),
    ],
)
def test_a_service_ends_with_its_actor_also_with_one_that_was_refused(tmp_path, started, status, message):
    """A refused attempt leaves the run.json of the actor's earlier start in place. A refused branch had no start."""
    session = ActorSession(600)
    session.welcome("run#1", ActorRun(str(tmp_path)), owner=None)
    heartbeat = {} if started is None else {"heartbeat": {"time": session._welcomed + 1.0 - started}}
    write_json(tmp_path / "run.json", {"status": "finished", **heartbeat})
    end = session.should_exit()
    assert end.status == status and message in end.message
