"""Changes of settings, and the way back, where actor and critic are two jobs. With one job: jobs/test_loop.py."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from aligner_lib.config.schema import Optim, Sched
from aligner_lib.remote_critic.checkpoints import CriticCheckpoints
from aligner_lib.remote_critic.client import NOTE, RemoteCritic
from aligner_lib.remote_critic.session import ActorRun
from aligner_lib.run_folder.reader import step_of
from aligner_lib.run_folder.set_aside import undo_change
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.lr import LRSchedule

pytestmark = [pytest.mark.remote_critic, pytest.mark.usefixtures("here")]


def test_the_critic_keeps_the_checkpoint_that_an_undo_of_the_actor_goes_back_to(tmp_path):
    """Four train steps of the critic in each of the actor's five; the settings change after the actor's second."""
    begin = {"config": {}, "seed": 0, "hashes": {}, "max_steps": 5}
    with (
        RunWriter(tmp_path / "actor", kind="ppo", **begin) as actor,
        RunWriter(tmp_path / "critic", kind="serve_critic", **begin) as server,
    ):
        actor.start(0)
        server.start(0)
        shelf = CriticCheckpoints(server, keep=1)

        def save(kind, updates, previous, way_back) -> dict:
            assert kind == "save"
            shelf.accept(shelf.tmp_dir(updates), updates, previous, ActorRun("actor"), way_back)
            return {}

        servers = SimpleNamespace(that_gives=lambda _: None, reach=lambda *_: {"optim": {}}, checkpoint=save)
        critic = RemoteCritic(servers, None, actor)
        critic._begun = True
        for step in (1, 2, 3, 4, 5):
            critic.updates = 4 * step
            folder = actor.checkpoint_tmp_dir(step)
            critic.save(folder / "critic")
            state = {"step": step, "changes": {"lr": 1000.0} if step >= 2 else {}}
            state |= {"before": {}} if step == 2 else {}
            (folder / "trainer.json").write_text(json.dumps(state))
            actor.accept_checkpoint(folder, step, keep=1, check=lambda _: None)
        actor.finish("stopped")
        assert [step_of(path) for path in actor.folder.checkpoints()] == [2, 5]
        assert shelf.numbers() == [8, 16, 20], "8: the way back; 16: until the actor's fifth was complete"
        checkpoint, _ = undo_change(actor.folder)
        assert shelf.find(json.loads((checkpoint / "critic" / NOTE).read_text())["updates"])


def test_the_learning_rate_is_that_of_the_critic_that_was_started_again():
    optims = iter(
        [asdict(Optim(lr=lr, sched=Sched(name="constant", warmup_steps=0))) for lr in (0.5, 0.5, 0.25)]
    )
    servers = SimpleNamespace(that_gives=lambda _: None, reach=lambda *_: {"optim": next(optims)})
    announced = []
    critic = RemoteCritic(servers, None, SimpleNamespace(announce=announced.append))
    schedule, rates = LRSchedule(critic.optim, 9), []
    for _ in range(2):
        critic.reach()
        rates.append((schedule(3), len(announced)))
    assert rates == [(0.5, 0), (0.25, 1)]
