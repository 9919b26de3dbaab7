"""Requeues by hand, and what accounting says of a lost node; test_slurm_training has the other ways to survive."""

from processes_help import until
from runs_help import last_step, losses, trainer, unbroken_losses

from cluster import Resources, State, submit

BOUND_S = 300


def log_of(job) -> str:
    path = job.folder / "batch.log"
    return path.read_text() if path.exists() else ""


def follow(job, done) -> set[State]:
    """The states seen until `done()`; a run that Slurm queues again must never look failed."""
    seen = set()

    def look():
        seen.add(job.state)
        return done()

    until(look, "the run's next step", BOUND_S)
    return seen


def test_requeue_by_hand_is_the_same_notice(slurm, run, tmp_path):
    gate = tmp_path / "gate"
    job = submit(trainer(run, 5, "--gate", gate, 2), run, "slurm", Resources(time="5"))
    until(lambda: last_step(run) == 2, "step 2")
    job.requeue()
    until(lambda: "attempt 1 of job" in log_of(job), "the next attempt")
    gate.touch()
    assert job.wait(BOUND_S) == State.FINISHED
    assert "queued again" in log_of(job)
    assert losses(run) == unbroken_losses(5)


def test_requeues_are_bounded(slurm, run, tmp_path):
    job = submit(
        trainer(run, 5, "--gate", tmp_path / "never", 2), run, "slurm", Resources(time="5", max_requeues=0)
    )
    until(lambda: last_step(run) == 2, "step 2")
    job.requeue()
    assert job.wait(BOUND_S) == State.FINISHED  # the command itself ended well, with a checkpoint
    assert "max_requeues" in job.reason
    assert last_step(run) == 2


def test_with_accounting_a_lost_node_is_no_failure_either(accounts, run, tmp_path):
    """sacct says NODE_FAIL for some seconds, while Slurm has queued the job again."""
    gate = tmp_path / "gate"
    job = submit(trainer(run, 4, "--gate", gate, 2), run, "slurm", Resources(time="5"))
    until(lambda: last_step(run) == 2, "step 2")
    (lost,) = until(lambda: job.nodes, "the node")
    accounts.set_node(lost, "down")
    gate.touch()
    seen = follow(job, lambda: job.state.final)
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(4)
    assert State.FAILED not in seen
