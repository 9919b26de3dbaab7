"""How the two jobs end, and what they go on from: a killed actor, checkpoints of different steps."""

import contextlib
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from forks import until
from servers import STEPS, Critic, run_actor, start_actor
from smoke_jobs import checkpoint_files, figures, steps

from cluster.record import read_json

pytestmark = pytest.mark.remote_critic

GONE_S = 6.0
KEEP = {"exp_manager__checkpoint_callback_params__save_top_k": 3}


def steps_to(last: int) -> dict[str, int]:
    return STEPS | {"trainer__ppo__max_steps": last}


def kill_actor(jobs, critic) -> SimpleNamespace:
    """Kill the actor after its third step; what was there of the critic at that moment."""
    critic.start(trainer__ppo__actor_timeout=GONE_S, **KEEP)
    actor = start_actor(jobs, "ends", critic, **(steps_to(5) | KEEP))
    run = jobs.run_folder("ends")
    until(lambda: {actor.exitcode, critic.process.exitcode} != {None} or 3 in steps(run), "step 3")
    children = critic.children()
    environments = read_json(critic.run.path / "job" / "pytriton.json")["environments"]
    segments = {mapped.path for child in children for mapped in child.memory_maps()}
    seen = SimpleNamespace(
        pid=critic.process.pid,
        children=children,
        environments=[Path(path) for path in environments],
        segments=[Path(path) for path in segments if path.startswith("/dev/shm/")],
    )
    actor.kill()
    actor.join()
    critic.until_it_ended()
    return seen


def test_without_its_actor_the_critic_ends_and_both_go_on_together_to_the_unbroken_run_s_end(
    jobs, in_process
):
    critic = Critic(jobs, "ends_critic")
    killed = kill_actor(jobs, critic)
    assert critic.run.status == "stopped"
    assert "sent nothing for 6 s (actor_timeout)" in critic.run.info["message"]
    assert critic.run.metrics()[-1]["step"] >= 6
    # what the actor had it save
    assert {path.name for path in critic.run.checkpoints()} <= {"step_000004", "step_000008"}
    assert_nothing_is_left(critic, killed)
    run = go_on(jobs, critic, 5)
    assert figures(run) == figures(in_process)
    ours = checkpoint_files(run)
    ours |= {f"critic/{name}": value for name, value in checkpoint_files(critic.run).items()}
    assert ours == checkpoint_files(in_process)
    assert steps(critic.run) == list(range(1, 11))

    # the critic's last checkpoint is lost
    shutil.rmtree(critic.run.latest_checkpoint())
    run, log = go_on(jobs, critic, 6), jobs.log("ends").read_text()
    assert "step_000005 can't be gone on from" in log
    assert "the server has no checkpoint after 10 train steps (its checkpoints: 4, 8)" in log
    assert steps(run) == list(range(7))  # no step twice
    assert figures(run)[:5] == figures(in_process)[:5]
    assert steps(critic.run) == list(range(1, 13))


def go_on(jobs, critic, last: int):
    critic.start(**KEEP)
    run_actor(jobs, "ends", critic, **(steps_to(last) | KEEP))
    critic.until_it_ended()
    return jobs.run_folder("ends")


def assert_nothing_is_left(critic, killed) -> None:
    """Of tritonserver, of a stub for each endpoint, and of their memory."""
    assert len(killed.children) >= 5
    assert [child for child in killed.children if child.is_running() and child.status() != "zombie"] == []
    assert [name for name in os.listdir("/dev/shm") if f"pytrtion{killed.pid}" in name] == []
    assert len(killed.segments) >= 2  # tritonserver's, and that of the tensors
    # a server of another worker that starts at the same moment may count the environment as its own
    assert len(killed.environments) <= 2
    assert not [path for path in killed.segments + killed.environments if path.exists()]
    assert not (critic.run.path / "pytriton").exists()
    assert not (critic.run.path / "token").exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", critic.port))


def test_a_second_sigterm_during_the_clean_up_leaves_no_process_behind(jobs):
    """Slurm's scancel signals every process of a job, and the batch script then signals the server once more."""
    critic = Critic(jobs, "cancelled_critic").start().until_it_serves()
    workspace = str((critic.run.path / "pytriton").resolve())
    assert running_from(workspace)
    for child in critic.children():
        child.terminate()
    while critic.process.exitcode is None:
        critic.process.terminate()
        critic.process.join(0.05)
    assert not running_from(workspace)
    assert not Path(workspace).exists()


def running_from(folder: str) -> list[str]:
    """Command lines of the processes that run from a folder."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if line.startswith(folder)]
