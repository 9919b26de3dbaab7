"""The small trainer when Slurm queues it again; test_slurm_training has the time limit, and a real trainer."""

import pytest
from processes_help import until
from runs_help import (
    BOUND_S,
    SHORT,
    batch_log,
    gate,
    gated,
    last_step,
    losses,
    states_until_the_end,
    submit_and_reach,
    unbroken_losses,
)

from cluster import JobFailed, Resources, State, submit


def test_requeues_are_bounded_and_an_interrupted_run_is_no_success(slurm, run, tmp_path):
    job = submit_and_reach(2, gated(run, 5, 2), run, SHORT.but(max_requeues=0))
    after = SHORT.but(sbatch={"dependency": f"afterok:{job.id}"})
    child = submit(["true"], tmp_path / "child", "slurm", after)
    job.requeue()
    with pytest.raises(JobFailed, match="max_requeues"):
        job.wait(BOUND_S)
    assert last_step(run) == 2, "with a checkpoint"
    until(lambda: child.reason == "DependencyNeverSatisfied", "the dependency's end")
    assert "is PENDING (DependencyNeverSatisfied)" in child.news()


def test_a_preempted_run_checkpoints_makes_way_and_never_looks_failed(slurm, run, tmp_path):
    on_n4 = {"exclusive": True, "time": "30", "sbatch": {"nodelist": "n4"}}
    job = submit_and_reach(2, gated(run, 5, 2), run, Resources(partition="debug", **on_n4))
    urgent = submit(["true"], tmp_path / "urgent", "slurm", Resources(partition="urgent", **on_n4))
    until(lambda: "queued again" in batch_log(job), "the preemption")
    gate(run).touch()
    seen = states_until_the_end(job)
    assert job.wait() == urgent.wait(BOUND_S) == State.FINISHED
    assert not seen & {State.FAILED, State.CANCELLED}
    assert "stopping for ['SIGTERM'" in job.log_path.read_text()
    assert not (run / "control" / "stop").exists()
    assert losses(run) == unbroken_losses(5)
