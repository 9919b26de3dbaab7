"""The way back from a change of settings, where actor and critic are two jobs."""

import json
import os
import signal
from types import SimpleNamespace

import pytest
from forks import until
from servers import Critic, run_actor, start_actor
from smoke_jobs import assert_same_run, steps

from aligner_lib.remote_critic.checkpoints import CriticCheckpoints
from aligner_lib.remote_critic.client import NOTE, RemoteCritic
from aligner_lib.run_folder.reader import step_of
from aligner_lib.run_folder.set_aside import last_change, undo_change
from aligner_lib.run_folder.writer import RunWriter
from widgets.runs.control import request_change

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
            shelf.accept(shelf.tmp_dir(updates), updates, previous, "actor", way_back)
            return {}

        servers = SimpleNamespace(that_gives=lambda _: None, reach=lambda *_: {}, checkpoint=save)
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


def test_a_change_of_two_jobs_that_is_undone_leaves_the_figures_of_an_unchanged_run(jobs):
    """The learning rate is set to 1000 after some step, and the run fails; both jobs go back, and on to the end."""
    settings = {"trainer__ppo__max_steps": 6, "trainer__ppo__save_interval": 1}
    run, critic = jobs.run_folder("changed"), Critic(jobs, "changed_critic").start()
    actor = start_actor(jobs, "changed", critic, **settings)
    until(lambda: actor.exitcode is not None or len(steps(run)) > 2, "step 2")
    os.kill(actor.pid, signal.SIGSTOP)  # so that enough steps are left to fail in
    request_change(run, lr=1000.0)
    os.kill(actor.pid, signal.SIGCONT)
    actor.join()
    critic.until_it_ended()
    change = last_change(run)
    assert (run.status, change.values) == ("failed", {"lr": 1000.0})

    checkpoint, values_after = undo_change(run)
    assert checkpoint == change.checkpoint and values_after == {}
    critic.start()
    run_actor(jobs, "changed", critic, **settings)
    critic.until_it_ended()
    unchanged = jobs.run("ppo", "unchanged", **settings)
    assert steps(run) == list(range(7))
    assert_same_run(run, unchanged)
