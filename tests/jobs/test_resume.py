"""Killed, started again, stopped, started again: the same run, to the bit, as one that nobody disturbed."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from forks import BOUND_S, until
from smoke_jobs import assert_same_to_the_bit, run_on_mapped_samples, steps

from aligner_lib.run_folder.reader import RunFolder, step_name

MAPPED = ("sft", "dpo")  # disturbed on mapped samples, unbroken on samples in memory
# kind: step to kill after, step to stop after. DPO is killed alone, RM stopped alone.
MOMENTS = {"sft": (5, 9), "rm": (None, 9), "dpo": (4, None), "ppo": (3, 5), "grpo": (3, 5)}


def start_and_wait_for(step: int, jobs, kind: str, run: RunFolder):
    process = jobs.start(kind, run.name)
    until(lambda: process.exitcode is not None or step in steps(run), f"step {step} of {run.name}")
    return process


def left_by(run: RunFolder) -> SimpleNamespace:
    """What is in the run's folder now."""
    checkpoint = run.latest_checkpoint().name
    return SimpleNamespace(info=run.info, status=run.status, last=steps(run)[-1], checkpoint=checkpoint)


@pytest.mark.parametrize(
    "kind", ["sft", "rm", "dpo", pytest.param("ppo", marks=pytest.mark.megatron), "grpo"]
)
def test_a_disturbed_run_is_the_unbroken_one_to_the_bit(jobs, request, tmp_path, kind):
    unbroken = request.getfixturevalue(kind)
    last = unbroken.info["max_steps"]
    if kind in MAPPED:
        jobs = replace(jobs, work=partial(run_on_mapped_samples, tmp_path))
    run, ends = jobs.run_folder(f"{kind}_disturbed"), []
    kill_after, stop_after = MOMENTS[kind]
    # each end is in the middle of the run, or the comparison would say nothing
    if kill_after:
        process = start_and_wait_for(kill_after, jobs, kind, run)
        process.kill()
        process.join()
        killed = left_by(run)
        ends.append(killed)
        assert killed.status == "lost" and kill_after <= killed.last < last
        assert killed.checkpoint <= step_name(killed.last)
    if stop_after:
        process = start_and_wait_for(stop_after, jobs, kind, run)
        run.request_stop()
        process.join(BOUND_S)
        stopped = left_by(run)
        ends.append(stopped)
        assert stopped.status == "stopped" and stopped.last < last
        assert stopped.checkpoint == step_name(stopped.last)
        assert f"stopped after step {stopped.last}" in stopped.info["message"]
    jobs.run(kind, run.name)
    assert len(list(tmp_path.glob("samples/*/samples.bin"))) == (2 if kind in MAPPED else 0)
    if kind in MAPPED:
        epochs = [run.metrics()[end.last]["train/epoch"] for end in ends]
        assert all(epoch % 1 for epoch in epochs), "the interruptions happened in the middle of an epoch"
    assert (run.info["resumed"], unbroken.info["resumed"]) == (len(ends), 0)
    assert steps(run) == list(range(last + 1))
    assert_same_to_the_bit(run, unbroken)
    assert bool(run.rollouts()) == (kind in ("ppo", "grpo"))
