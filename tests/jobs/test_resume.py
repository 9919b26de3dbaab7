"""Killed, started again, stopped, started again: the same run, to the bit, as one that nobody disturbed."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from forks import BOUND_S, until
from smoke_jobs import checkpoint_files, figures, run_on_mapped_samples, steps

from aligner_lib.run_folder.reader import step_name

MAPPED = ("sft", "dpo")  # disturbed on mapped samples, unbroken on samples in memory
# kind: step to kill after, step to stop after
MOMENTS = {"sft": (5, 9), "rm": (5, 9), "dpo": (4, 7), "ppo": (3, 5), "grpo": (3, 5)}


def disturb(jobs, kind: str):
    """Kill a run with SIGKILL, go on, stop it, and go on to its end; what was seen after the kill and after the stop."""
    name = f"{kind}_disturbed"
    run = jobs.run_folder(name)

    def start_and_wait_for(step: int):
        process = jobs.start(kind, name)
        until(lambda: process.exitcode is not None or step in steps(run), f"step {step} of {name}")
        return process

    def seen() -> SimpleNamespace:
        checkpoint = run.latest_checkpoint().name
        return SimpleNamespace(info=run.info, status=run.status, last=steps(run)[-1], checkpoint=checkpoint)

    killed_after, stopped_after = MOMENTS[kind]
    process = start_and_wait_for(killed_after)
    process.kill()
    process.join()
    killed = seen()
    process = start_and_wait_for(stopped_after)
    run.request_stop()
    process.join(BOUND_S)
    stopped = seen()
    return jobs.run(kind, name), killed, stopped


@pytest.mark.parametrize(
    "kind", ["sft", "rm", "dpo", pytest.param("ppo", marks=pytest.mark.megatron), "grpo"]
)
def test_a_disturbed_run_is_the_unbroken_one_to_the_bit(jobs, request, tmp_path, kind):
    unbroken = request.getfixturevalue(kind)
    if kind in MAPPED:
        jobs = replace(jobs, work=partial(run_on_mapped_samples, tmp_path))
    run, killed, stopped = disturb(jobs, kind)
    assert len(list(tmp_path.glob("samples/*/samples.bin"))) == (2 if kind in MAPPED else 0)
    if kind in MAPPED:
        epochs = [
            record["train/epoch"] for record in run.metrics() if record["step"] in (killed.last, stopped.last)
        ]
        assert all(epoch % 1 for epoch in epochs), "both interruptions happened in the middle of an epoch"
    last = unbroken.info["max_steps"]
    # both happened in the middle, or the comparison would say nothing
    assert killed.status == "lost" and MOMENTS[kind][0] <= killed.last < last
    assert killed.checkpoint <= step_name(killed.last)
    assert stopped.status == "stopped" and stopped.last < last
    assert stopped.checkpoint == step_name(stopped.last)
    assert f"stopped after step {stopped.last}" in stopped.info["message"]

    assert run.status == unbroken.status == "finished"
    assert (run.info["resumed"], unbroken.info["resumed"]) == (2, 0)
    assert steps(run) == list(range(last + 1))
    assert figures(run) == figures(unbroken)
    assert run.rollouts() == unbroken.rollouts()
    assert bool(run.rollouts()) == (kind in ("ppo", "grpo"))
    ours, theirs = checkpoint_files(run), checkpoint_files(unbroken)
    assert {"weights/rank00000_00000.safetensors", "optimizer/rank00000_00000.safetensors"} <= ours.keys()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
