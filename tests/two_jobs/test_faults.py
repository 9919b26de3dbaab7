"""The critic is killed in every way at every moment, and the actor goes on: the same run, to the bit, as an unbroken one."""

import os
import re
import signal
import time
from types import SimpleNamespace

import pytest
from forks import BOUND_S, until
from servers import Critic, child_of, start_actor
from smoke_jobs import checkpoint_files, figures

pytestmark = pytest.mark.two_jobs

STEPS = {"trainer__ppo__max_steps": 8}
NOTICED_S = 30.0
# What happens to the critic, when it has obeyed so many of these orders since it was started.
BLOWS = [
    {"infer": (5, "kill")},
    {"train": (2, "kill")},  # taken, and never answered
    {"save": (1, "kill")},  # written, and never named
    {"save": (1, "tritonserver")},  # named, and the actor is not told
    {"infer": (2, "stub")},
    {"infer": (2, "other stub")},
    {"train": (2, "stop")},  # the last: it is let go on, and taken back
]


@pytest.fixture(scope="module")
def unbroken(jobs):
    """PPO in one process."""
    return jobs.run("ppo", "unbroken", **STEPS)


@pytest.fixture(scope="module")
def battered(jobs):
    """An actor whose critic meets every blow and is started, or let go on, again each time; and what was seen on the way."""
    critic = Critic(jobs, "battered_critic")
    actor = start_actor(jobs, "battered", critic, **STEPS)
    run, seen = jobs.run_folder("battered"), []
    for number, faults in enumerate(BLOWS):
        critic.start(faults)
        blow = next(iter(faults.values()))[1]

        def struck(blow=blow):
            return _is_stopped(critic.process.pid) if blow == "stop" else critic.process.exitcode is not None

        until(lambda: struck() or actor.exitcode is not None, f"blow {number}")
        assert actor.exitcode is None, jobs.log("battered").read_text()
        started = time.monotonic()
        until(
            lambda: "interrupted" in run.info["message"] or actor.exitcode is not None,
            f"blow {number} noticed",
        )
        noticed = time.monotonic() - started
        message, checkpoint = run.info["message"], run.latest_checkpoint()
        if blow == "stop":
            os.kill(critic.process.pid, signal.SIGCONT)
        seen.append(
            SimpleNamespace(
                faults=faults,
                pid=critic.process.pid,
                noticed=noticed,
                message=message,
                checkpoint=checkpoint and checkpoint.name,
                critic=critic.run.status,
                reason=critic.run.info["message"],
            )
        )
    actor.join(BOUND_S)
    critic.until_it_ended()
    return SimpleNamespace(run=run, critic=critic, seen=seen, log=jobs.log("battered").read_text())


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False


def test_every_blow_was_noticed_in_time_and_said(battered):
    assert len(battered.seen) == len(BLOWS)
    for blow in battered.seen:
        assert blow.noticed < NOTICED_S, blow
        assert "interrupted after step" in blow.message, blow
        assert "the critic at 127.0.0.1" in blow.message, blow


def test_the_actor_was_saved_when_it_noticed(battered):
    for blow in battered.seen:
        step = int(re.match(r"interrupted after step (\d+)", blow.message)[1])
        assert blow.checkpoint == (f"step_{step:06d}" if step else None), blow


def test_a_critic_that_lost_its_server_says_so(battered):
    by_blow = {next(iter(blow.faults.values()))[1]: blow for blow in battered.seen}
    for blow in (by_blow["tritonserver"], by_blow["stub"], by_blow["other stub"]):
        assert blow.critic == "failed"
        assert "a process of PyTriton's server ended" in blow.reason


def test_the_metrics_are_the_unbroken_run_s_to_the_bit(battered, unbroken):
    assert battered.run.status == unbroken.status == "finished", battered.log
    for ours, theirs in zip(figures(battered.run), figures(unbroken), strict=True):
        # a critic that went away in a step's training takes the step later: its figures are in its own run
        late = {name for name in theirs.keys() - ours.keys() if name in ("critic/loss", "critic/grad_norm")}
        assert ours == {name: value for name, value in theirs.items() if name not in late}


def test_no_train_step_was_lost_or_taken_twice(battered, unbroken):
    updates = [record["step"] for record in battered.critic.run.metrics()]
    assert updates == list(range(1, 17))  # two in each of 8 steps


def test_weights_and_optimizers_are_the_unbroken_run_s_to_the_bit(battered, unbroken):
    theirs = checkpoint_files(unbroken)
    ours = checkpoint_files(battered.run)
    ours |= {f"critic/{name}": value for name, value in checkpoint_files(battered.critic.run).items()}
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_a_stopped_tritonserver_is_noticed_and_taken_back(jobs, unbroken):
    critic = Critic(jobs, "paused_critic")
    actor = start_actor(jobs, "paused", critic, **STEPS)
    run = jobs.run_folder("paused")
    critic.start({"train": (2, "stopped tritonserver")})

    def tritonserver():
        return child_of(critic.process.pid, "bin/tritonserver")

    stopped = until(
        lambda: (child := tritonserver()) and _is_stopped(child.pid) and child, "tritonserver stopped"
    )
    started = time.monotonic()
    until(lambda: "interrupted" in run.info["message"], "noticed")
    assert time.monotonic() - started < NOTICED_S
    stopped.resume()
    actor.join(BOUND_S)
    critic.until_it_ended()
    assert run.status == "finished"
    assert figures(run)[-1] == figures(unbroken)[-1]


def test_nothing_is_left_of_any_server(battered):
    assert not (battered.critic.run.path / "pytriton").exists()
    servers = {*(blow.pid for blow in battered.seen), battered.critic.process.pid}
    segments = [name for name in os.listdir("/dev/shm") if name.startswith("pytrtion")]
    assert [name for name in segments if int(re.match(r"pytrtion(\d+)-", name)[1]) in servers] == []
