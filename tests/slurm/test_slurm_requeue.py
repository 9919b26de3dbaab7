"""A run survives: time limits, preemption, nodes that go down. It ends with the losses of an unbroken run."""

import pytest
from processes_help import until
from runs_help import last_step, losses, trainer, unbroken_losses

from cluster import JobFailed, Resources, State, submit

BOUND_S = 120


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


def test_time_limit_checkpoints_requeues_and_resumes(slurm, run, tmp_path):
    """Slurm's shortest limit is a minute, and it looks at limits twice a minute."""
    gate = tmp_path / "gate"
    resources = Resources(nodes=2, time="1", signal_delay_s=50)
    job = submit(trainer(run, 9, "--gate", gate, 4), run, "slurm", resources)
    seen = follow(job, lambda: "attempt 1 of job" in log_of(job))
    gate.touch()
    seen |= follow(job, lambda: job.state.final)
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(9)
    assert "the scheduler gave notice" in log_of(job)
    assert "stopping for control/stop at step 4" in job.log_path.read_text()
    assert State.FAILED not in seen and State.PENDING in seen
    assert not (run / "control" / "stop").exists()


def test_a_trainer_that_misses_the_limit_fails_with_the_cure(slurm, run):
    """It ignores the request to stop, and the limit passes."""
    deaf = ["bash", "-c", "trap '' TERM; while true; do sleep 1; done"]
    job = submit(deaf, run, "slurm", Resources(time="1", signal_delay_s=30))
    with pytest.raises(JobFailed, match=r"TIMEOUT: .*signal_delay_s"):
        job.wait(BOUND_S)


def test_preemption_checkpoints_requeues_and_resumes(slurm, run, tmp_path):
    gate = tmp_path / "gate"
    mine = Resources(nodes=4, exclusive=True, time="5", partition="debug")
    job = submit(trainer(run, 6, "--gate", gate, 3), run, "slurm", mine)
    until(lambda: last_step(run) == 3, "step 3")
    urgent = submit(["true"], tmp_path / "urgent", "slurm", mine.but(partition="urgent"))
    gate_opened = False

    def resumed():
        nonlocal gate_opened
        if not gate_opened and "attempt 1 of job" in log_of(job):
            gate.touch()
            gate_opened = True
        return job.state.final

    seen = follow(job, resumed)
    assert urgent.wait(BOUND_S) == State.FINISHED
    assert job.wait(BOUND_S) == State.FINISHED
    assert "resumed at step 3" in job.log_path.read_text()
    assert losses(run) == unbroken_losses(6)
    assert State.FAILED not in seen


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


def test_a_node_that_is_set_down_requeues_the_run_elsewhere(slurm, run, tmp_path):
    gate = tmp_path / "gate"
    job = submit(trainer(run, 6, "--gate", gate, 3), run, "slurm", Resources(nodes=2, time="5"))
    until(lambda: last_step(run) == 3, "step 3")
    until(lambda: len(job.nodes) == 2, "the nodes")
    lost = job.nodes[0]
    slurm.set_node(lost, "down")
    gate.touch()
    seen = follow(job, lambda: job.state.final)
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(6)
    assert State.FAILED not in seen and State.CANCELLED not in seen


def test_a_node_that_dies_requeues_the_run_elsewhere(slurm, run, tmp_path):
    """The node's daemon and all of its processes vanish, as with a power cut."""
    gate = tmp_path / "gate"
    job = submit(trainer(run, 6, "--gate", gate, 3), run, "slurm", Resources(nodes=1, time="5"))
    until(lambda: last_step(run) == 3, "step 3")
    (lost,) = until(lambda: job.nodes, "the node")
    slurm.power_cut(lost, job.id)
    gate.touch()
    seen = follow(job, lambda: job.state.final)
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(6)
    assert State.FAILED not in seen


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
