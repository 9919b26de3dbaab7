"""PPO as two jobs gives the figures of PPO in one process, whatever the layouts, micro batches and padding."""

import re

import forks
import pytest
from device_jobs import run_on_device
from forks import finish, until
from servers import STEPS, Critic, actor_settings, start_actor
from smoke_jobs import assert_same_run

pytestmark = pytest.mark.remote_critic

TP2 = {"model__tensor_model_parallel_size": 2}
PP2 = {"model__pipeline_model_parallel_size": 2}


@pytest.fixture(scope="module")
def two(remote_jobs):
    """Two jobs of one process each; the critic with another micro batch, the requests padded to one length."""
    return remote_jobs(
        "two", {"remote_critic_rm__pad_to_length": 160}, {"trainer__ppo__inference_micro_batch_size": 3}
    )


def test_every_metric_is_the_one_process_s(two, in_process):
    assert_same_run(two[0], in_process)


def test_the_actor_s_wait_is_told(two):
    waits = [record["timers/critic_wait"] for record in two[0].metrics() if record["step"]]
    assert len(waits) == 5
    assert all(0 < wait < record["timers/step_time"] for wait, record in zip(waits, two[0].metrics()[1:]))


def test_the_critic_has_a_run_of_its_own(two):
    actor, critic = two[0], two[1].run
    assert (critic.kind, critic.status) == ("critic", "finished")
    assert critic.info["message"] == f"its actor, {actor.path}, is done"
    assert [record["step"] for record in critic.metrics()] == list(range(1, 11))
    losses = {record["step"]: record["train/loss"] for record in critic.metrics()}
    for record in actor.metrics()[1:]:  # two updates a step
        both = losses[2 * record["step"] - 1] + losses[2 * record["step"]]
        assert record["critic/loss"] == pytest.approx(both / 2)


def test_both_keep_the_checkpoints_that_belong_together(two):
    assert [path.name for path in two[0].checkpoints()] == ["step_000005"]
    assert [path.name for path in two[1].run.checkpoints()] == ["step_000008", "step_000010"]


# both halves are trained in the first step already
TWO_STEPS = {"trainer__ppo__max_steps": 2, "trainer__ppo__critic_warmup_steps": 0}


@pytest.fixture(scope="module")
def short(jobs):
    """Two steps of PPO in one process."""
    return jobs.run("ppo", "short", **STEPS | TWO_STEPS)


@pytest.mark.parametrize(
    ("name", "actor", "ranks", "critic", "critic_ranks"),
    [
        # a critic of two tensor-parallel ranks, and an actor of two data-parallel ones alone: test_faults
        ("tp2_dp2_actor_pp2_critic", TP2, 4, PP2, 2),
        ("pp2_actor_dp2_critic", PP2, 2, {}, 2),
    ],
)
def test_layouts(remote_jobs, short, name, actor, ranks, critic, critic_ranks):
    run, _ = remote_jobs(name, actor | TWO_STEPS, critic, ranks, critic_ranks)
    assert_same_run(run, short)


def test_both_on_a_device_that_is_not_the_cpu(jobs, short):
    critic = Critic(jobs, "device_critic", on_device=True).start(model__offload_adam_states=True)
    offloaded = STEPS | TWO_STEPS | {"model__ppo__offload_adam_states": True}
    settings = actor_settings(jobs, "on_device", critic, **offloaded)
    forks.run(run_on_device, "ppo", settings, jobs.out / "on_device.json", log=jobs.log("on_device"))
    critic.until_it_ended()
    assert_same_run(jobs.run_folder("on_device"), short)


def test_a_reward_model_of_its_own_that_is_killed_and_started_again(jobs, short):
    critic = Critic(jobs, "alone_critic").start(trainer__ppo__combine_rm_and_critic_server=False)
    rewards = Critic(jobs, "alone_rewards", kind="reward_server").start({"rewards": (3, "kill")})
    apart = {
        "model__ppo__combine_rm_and_critic_server": False,
        # by run folder, as jobs on a cluster find each other
        "remote_critic_rm__critic__ip": "null",
        "remote_critic_rm__critic__run": f"'{critic.run.path}'",
        "remote_critic_rm__reward_model__run": f"'{rewards.run.path}'",
    }
    for server in (critic, rewards):
        server.until_it_serves()
    actor = start_actor(jobs, "alone", critic, **(STEPS | TWO_STEPS | apart))
    until(lambda: rewards.process.exitcode is not None or actor.exitcode is not None, "the blow")
    rewards.start()
    finish(actor, jobs.log("alone"))
    words = rf"^interrupted after step \d+.*: the reward model of {rewards.run.path}"
    assert re.search(words, jobs.log("alone").read_text(), re.MULTILINE)
    assert_same_run(jobs.run_folder("alone"), short)
    for server in (critic, rewards):
        server.until_it_ended()
        assert server.run.status == "finished", server.log
