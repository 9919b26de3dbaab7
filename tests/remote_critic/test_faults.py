"""The critic is killed in every way at every moment, and the actor goes on: the same run, to the bit, as an unbroken one."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import forks
import psutil
import pytest
from forks import BOUND_S, until
from servers import STEPS, Critic, actor_settings, child_of, run_actor, start_actor
from smoke_jobs import checkpoint_files, figures, run_smoke_job, steps

pytestmark = pytest.mark.remote_critic

MESSAGE = re.compile(r"^(?:interrupted|going on) after step .*", re.MULTILINE)
SAVED_EVERY = 2  # steps
# What happens to the critic, and when (see servers.Faults); each of the 5 steps has two train steps.
STARTS = [
    {"train": (2, "kill")},  # taken, and never answered; while it computes rewards: test_remote_settings
    {"save": (4, "tritonserver")},  # named, and the actor is not told
    # let go on twice; and the last save of all: written, and never named
    {"values": (2, "stop"), "train": (7, "stopped tritonserver"), "save": (10, "kill")},
]
BLOWS = [blow for faults in STARTS for _, blow in faults.values()]


@pytest.fixture(scope="module")
def battered(jobs):
    """An actor whose critic meets every blow and is started, or let go on, again each time; and what was seen on the way."""
    critic = Critic(jobs, "battered_critic")
    actor = start_actor(jobs, "battered", critic, **STEPS)
    run, log, seen = jobs.run_folder("battered"), jobs.log("battered"), []
    for faults in STARTS:
        critic.start(faults)
        for command, (_, blow) in faults.items():
            until(lambda: _struck(critic, blow) or actor.exitcode is not None, blow)  # noqa: B023
            until(lambda: _interruption(log) or actor.exitcode is not None, f"{blow} noticed")
            assert actor.exitcode is None, log.read_text()
            seen.append(
                SimpleNamespace(
                    command=command,
                    blow=blow,
                    pid=critic.process.pid,
                    message=_interruption(log),
                    checkpoint=run.latest_checkpoint() and run.latest_checkpoint().name,
                    critic=critic.run.status,
                    reason=critic.run.info["message"],
                )
            )
            if paused := _paused(critic, blow):
                paused.resume()
                until(lambda: not _interruption(log), f"{blow} over")
    critic.start()
    actor.join(BOUND_S)
    critic.until_it_ended()
    return SimpleNamespace(run=run, critic=critic, seen=seen, log=log.read_text())


def _struck(critic: Critic, blow: str) -> bool:
    paused = _paused(critic, blow)
    assert blow != "kill" or critic.process.exitcode in (None, -signal.SIGKILL), critic.log
    return critic.process.exitcode is not None if paused is None else paused.status() == psutil.STATUS_STOPPED


def _paused(critic: Critic, blow: str) -> psutil.Process | None:
    """The process that the blow stops, and that can be let go on."""
    if blow == "stop":
        return psutil.Process(critic.process.pid)
    return child_of(critic.process.pid, "bin/tritonserver") if blow == "stopped tritonserver" else None


def _interruption(log: Path) -> str | None:
    """The actor's last message, if it is that it was interrupted, and not that it goes on."""
    messages = MESSAGE.findall(log.read_text())
    return messages[-1] if messages and messages[-1].startswith("interrupted") else None


def test_every_blow_is_noticed_and_both_go_back_to_their_newest_common_checkpoint(battered):
    assert [seen.blow for seen in battered.seen] == BLOWS
    assert battered.log.count("interrupted after step") == len(BLOWS)
    went_back = [int(step) for step in re.findall(r"^going on after step (\d+)", battered.log, re.MULTILINE)]
    for blow, back in zip(battered.seen, went_back, strict=True):
        assert "the critic at 127.0.0.1" in blow.message, blow
        step = int(re.match(r"interrupted after step (\d+)", blow.message)[1])
        # a checkpoint that was interrupted was never complete
        newest = step - 1 if blow.command == "save" else step
        assert back == newest - newest % SAVED_EVERY, blow
        assert blow.checkpoint == (f"step_{back:06d}" if back else None), blow
        if blow.blow == "tritonserver":
            assert blow.critic == "failed"
            assert "a process of PyTriton's server ended" in blow.reason


def test_the_run_is_the_unbroken_one_s_to_the_bit_and_nothing_is_left_of_any_server(battered, in_process):
    assert battered.run.status == in_process.status == "finished", battered.log
    assert figures(battered.run) == figures(in_process)
    assert steps(battered.critic.run) == list(range(1, 11)), "no train step is lost or repeated"
    ours, theirs = checkpoint_files(battered.run), checkpoint_files(in_process)
    ours |= {f"critic/{name}": value for name, value in checkpoint_files(battered.critic.run).items()}
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert not (battered.critic.run.path / "pytriton").exists()
    servers = {*(blow.pid for blow in battered.seen), battered.critic.process.pid}
    segments = [name for name in os.listdir("/dev/shm") if name.startswith("pytrtion")]
    assert [name for name in segments if int(re.match(r"pytrtion(\d+)-", name)[1]) in servers] == []


# ---- several ranks --------------------------------------------------------------------------------------------------

KILLED = {"train": (7, "kill")}  # in the fourth step
PP2 = {"model__pipeline_model_parallel_size": 2}


def assert_figures_of_one_process(run, in_process) -> None:
    for ours, theirs in zip(figures(run), figures(in_process), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


def test_a_killed_second_rank_is_noticed_and_a_stopped_actor_goes_on_with_the_next_critic(jobs, in_process):
    """The ranks are pipeline stages, of which the second one alone has values."""
    critic = Critic(jobs, "ranks_critic").start(KILLED, ranks=2, **PP2)
    actor = start_actor(jobs, "ranks", critic, **STEPS)
    run, log = jobs.run_folder("ranks"), jobs.log("ranks")
    until(lambda: critic.other_ranks[0].exitcode is not None or actor.exitcode is not None, "the kill")
    until(lambda: _interruption(log) or actor.exitcode is not None, "the kill noticed")
    critic.until_it_ended()
    assert "it has lost one of its ranks in" in critic.run.info["message"]
    run.request_stop()
    actor.join(BOUND_S)
    assert actor.exitcode == 0, log.read_text()
    assert (run.status, run.latest_checkpoint().name) == ("stopped", "step_000002")
    critic.start(ranks=2, **PP2)
    run_actor(jobs, "ranks", critic, **STEPS)
    critic.until_it_ended()
    assert run.status == "finished", log.read_text()
    assert_figures_of_one_process(run, in_process)
    assert steps(critic.run) == list(range(1, 11))


def test_actor_and_critic_of_two_data_parallel_ranks_go_back_together(jobs, in_process):
    critic = Critic(jobs, "actor_ranks_critic").start(KILLED, ranks=2)
    settings = actor_settings(jobs, "actor_ranks", critic, trainer__devices=2, **STEPS)
    ranks = forks.start_ranks(2, run_smoke_job, "ppo", settings, folder=jobs.logs("actor_ranks"))
    until(lambda: critic.process.exitcode is not None or ranks[0].exitcode is not None, "the kill")
    critic.start(ranks=2)
    forks.finish_ranks(ranks, jobs.logs("actor_ranks"))
    critic.until_it_ended()
    run, log = jobs.run_folder("actor_ranks"), (jobs.logs("actor_ranks") / "rank0.log").read_text()
    assert run.status == "finished"
    assert "interrupted after step 3" in log
    assert "going on after step 2" in log
    assert_figures_of_one_process(run, in_process)
    assert steps(critic.run) == list(range(1, 11))
