"""Killed, started again, stopped, started again: the same run, to the bit, as one that nobody disturbed."""

from types import SimpleNamespace

import pytest
from forks import BOUND_S, until
from smoke_jobs import checkpoint_files, figures, steps

# kind: step to kill after, step to stop after
MOMENTS = {"sft": (5, 9), "rm": (5, 9), "dpo": (4, 7), "ppo": (3, 5), "grpo": (3, 5)}


@pytest.fixture(
    scope="session", params=["sft", "rm", "dpo", pytest.param("ppo", marks=pytest.mark.megatron), "grpo"]
)
def disturbed(request, jobs):
    """A run that was killed with SIGKILL, went on, was stopped, and went on to its end; and what was seen on the way."""
    kind = request.param
    killed_after, stopped_after = MOMENTS[kind]
    unbroken = request.getfixturevalue(kind)
    name = f"{kind}_disturbed"
    run = jobs.run_folder(name)

    def start_and_wait_for(step: int):
        process = jobs.start(kind, name)
        until(lambda: process.exitcode is not None or step in steps(run), f"step {step} of {name}")
        return process

    def seen() -> SimpleNamespace:
        checkpoint = run.latest_checkpoint().name
        return SimpleNamespace(info=run.info, status=run.status, steps=steps(run), checkpoint=checkpoint)

    process = start_and_wait_for(killed_after)
    process.kill()
    process.join()
    killed = seen()
    process = start_and_wait_for(stopped_after)
    run.request_stop()
    process.join(BOUND_S)
    stopped = seen()
    jobs.run(kind, name)
    return SimpleNamespace(kind=kind, run=run, unbroken=unbroken, killed=killed, stopped=stopped)


def test_it_was_killed_in_the_middle(disturbed):
    """Else the comparison says nothing."""
    after, _ = MOMENTS[disturbed.kind]
    assert disturbed.killed.status == "lost"
    assert after <= disturbed.killed.steps[-1] < disturbed.unbroken.info["max_steps"]
    assert disturbed.killed.checkpoint <= f"step_{disturbed.killed.steps[-1]:06d}"


def test_a_stop_leaves_a_checkpoint_of_the_last_step(disturbed):
    last = disturbed.stopped.steps[-1]
    assert disturbed.stopped.status == "stopped"
    assert last < disturbed.unbroken.info["max_steps"]
    assert disturbed.stopped.checkpoint == f"step_{last:06d}"
    assert f"stopped after step {last}" in disturbed.stopped.info["message"]


def test_the_metrics_are_the_unbroken_run_s_to_the_bit(disturbed):
    assert disturbed.run.status == disturbed.unbroken.status == "finished"
    assert steps(disturbed.run) == list(range(disturbed.unbroken.info["max_steps"] + 1))
    assert figures(disturbed.run) == figures(disturbed.unbroken)


def test_the_rollouts_are_the_unbroken_run_s(disturbed):
    assert disturbed.run.rollouts() == disturbed.unbroken.rollouts()
    assert bool(disturbed.run.rollouts()) == (disturbed.kind in ("ppo", "grpo"))


def test_weights_and_optimizer_are_the_unbroken_run_s_to_the_bit(disturbed):
    ours, theirs = checkpoint_files(disturbed.run), checkpoint_files(disturbed.unbroken)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert {"weights/rank00000_00000.safetensors", "optimizer/rank00000_00000.safetensors"} <= ours.keys()


def test_it_is_one_run_that_was_resumed_twice(disturbed):
    assert disturbed.run.info["resumed"] == 2
    assert disturbed.unbroken.info["resumed"] == 0
