"""PPO as two jobs gives the figures of PPO in one process, whatever the layouts, micro batches and padding.

An actor of data-parallel ranks, and a critic of several ranks: test_faults.py.
"""

import forks
import pytest
from device_jobs import run_on_device
from servers import TWO_STEPS, Critic, actor_settings
from smoke_jobs import assert_same_run

pytestmark = pytest.mark.remote_critic

PADDED = {"remote_critic_rm__pad_to_length": 160}
PP2 = {"model__pipeline_model_parallel_size": 2}


def test_every_metric_is_the_one_process_s(remote_jobs, in_process):
    """The actor has two pipeline stages, the critic another micro batch, and the requests are padded to one length."""
    actor, server = remote_jobs(
        "two", PADDED | PP2, {"trainer__ppo__inference_micro_batch_size": 3}, actor_ranks=2
    )
    critic = server.run
    assert_same_run(actor, in_process)
    records = actor.metrics()[1:]
    assert len(records) == 5
    assert all(0 < record["timers/critic_wait"] < record["timers/step_time"] for record in records)
    # the critic has a run of its own, with two updates in each of the actor's steps
    assert (critic.kind, critic.status) == ("critic", "finished")
    assert critic.info["message"] == f"its actor, {actor.path}, is done"
    steps, losses = critic.series("train/loss")
    assert steps == list(range(1, 11))
    assert [record["critic/loss"] for record in records] == pytest.approx(
        [(first + second) / 2 for first, second in zip(losses[::2], losses[1::2])]
    )
    # both keep the checkpoints that belong together
    assert [path.name for path in actor.checkpoints()] == ["step_000005"]
    assert [path.name for path in critic.checkpoints()] == ["step_000008", "step_000010"]


def test_both_on_a_device_that_is_not_the_cpu(jobs, short):
    critic = Critic(jobs, "device_critic", on_device=True).start(model__offload_adam_states=True)
    offloaded = TWO_STEPS | {"model__ppo__offload_adam_states": True}
    settings = actor_settings(jobs, "on_device", critic, **offloaded)
    forks.run(run_on_device, "ppo", settings, jobs.out / "on_device.json", log=jobs.log("on_device"))
    critic.until_it_ended()
    assert_same_run(jobs.run_folder("on_device"), short)
