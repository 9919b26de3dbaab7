"""Hetjobs: critic on one component, actor on the other."""

import pytest
from processes_help import until
from runs_help import critic, last_step, losses, trainer, unbroken_losses

from cluster import Job, JobFailed, Resources, State, submit

BOUND_S = 300
SHARES = {
    "critic": Resources(nodes=1, gpus_per_node=2, tasks_per_node=1, time="5", linger_s=20),
    "actor": Resources(nodes=2, gpus_per_node=8, tasks_per_node=1, time="5", linger_s=20),
}


def ppo(run, steps, *options):
    return {"critic": critic(run), "actor": trainer(run, steps, "--critic", *options)}


def test_both_components_run_meet_and_end(slurm, run, tmp_path):
    job = submit(ppo(run, 3, "--gate", tmp_path / "gate", 2), run, "slurm", SHARES)
    until(lambda: last_step(run) == 2, "step 2")
    status = job.status
    assert status.state == State.RUNNING
    assert len(status.nodes) == 3
    assert job.gpus == 18
    (tmp_path / "gate").touch()
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(3)
    assert f"critic at {status.nodes[0]}" in job.log_path.read_text()
    assert "critic ready" in job.log_of("critic").read_text()
    ports = {name: job.log_of(name).read_text().split("rendezvous at ")[1].split(",")[0] for name in SHARES}
    assert ports["critic"].split(":")[1] != ports["actor"].split(":")[1]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_cancel_of_the_job_or_of_one_component_takes_both(slurm, run, tmp_path, by_hand):
    job = submit(ppo(run, 3, "--gate", tmp_path / "never", 2), run, "slurm", SHARES)
    until(lambda: last_step(run) == 2, "step 2")
    if by_hand:
        slurm.tool("scancel", f"{job.id}+1")
    else:
        job.cancel()
    assert job.wait(BOUND_S) == State.CANCELLED
    until(lambda: not slurm.tool("squeue", "-h"), "an empty queue")


def test_a_critic_that_fails_ends_the_actor_and_is_named(slurm, run):
    commands = {"critic": critic(run, "fail"), "actor": trainer(run, 3, "--critic")}
    with pytest.raises(JobFailed) as failure:
        submit(commands, run, "slurm", SHARES).wait(BOUND_S)
    assert failure.value.exception_line == "OSError: port 5567 is taken"
    assert "critic rank 0" in str(failure.value)


def test_an_actor_that_fails_ends_the_critic(slurm, run):
    job = submit(ppo(run, 3, "--fail-at", 2), run, "slurm", SHARES)
    with pytest.raises(JobFailed, match="loss is nan at step 2"):
        job.wait(BOUND_S)
    until(lambda: not slurm.tool("squeue", "-h"), "an empty queue")


def set_down(slurm, job, node):
    slurm.set_node(node, "down")


def cut_power(slurm, job, node):
    slurm.power_cut(node, job.id)


@pytest.mark.parametrize(
    ("component", "fault"), [("critic", set_down), ("actor", set_down), ("critic", cut_power)]
)
def test_a_lost_node_requeues_both(slurm, run, tmp_path, component, fault):
    """The critic's node also runs the batch script; Slurm itself queues only that component again."""
    gate = tmp_path / "gate"
    job = submit(ppo(run, 5, "--gate", gate, 2), run, "slurm", SHARES)
    until(lambda: last_step(run) == 2, "step 2")
    nodes = until(lambda: job.nodes, "the nodes")
    fault(slurm, job, nodes[0] if component == "critic" else nodes[1])
    until(
        lambda: "attempt 1 of job" in (job.folder / "batch.log").read_text(),
        lambda: f"the next attempt: {slurm.told(job)}",
        BOUND_S,
    )
    gate.touch()
    seen = set()

    def ended():
        seen.add(job.state)
        return job.state.final

    until(ended, "the end", BOUND_S)
    assert job.wait() == State.FINISHED
    assert not seen & {State.FAILED, State.CANCELLED}
    assert losses(run) == unbroken_losses(5)
    assert job.log_path.read_text().count("critic at") == 2  # found anew, not the old announcement


def test_requeue_of_a_hetjob_checkpoints_first(slurm, run, tmp_path):
    gate = tmp_path / "gate"
    job = submit(
        ppo(run, 5, "--gate", gate, 2), run, "slurm", {n: s.but(linger_s=1) for n, s in SHARES.items()}
    )
    until(lambda: last_step(run) == 2, "step 2")
    job.requeue()
    until(lambda: "attempt 1 of job" in (job.folder / "batch.log").read_text(), "the next attempt")
    gate.touch()
    assert Job.attach(run).wait(BOUND_S) == State.FINISHED
    assert "stopping for control/stop at step 2" in job.log_path.read_text()
    assert losses(run) == unbroken_losses(5)


def test_accounting_tells_both_components(accounts, run):
    from cluster.queue import accounted_state

    job = submit(ppo(run, 1), run, "slurm", SHARES, name="ppo")
    assert job.wait(BOUND_S) == State.FINISHED
    until(lambda: accounted_state(job.id, "ppo", job.record.submitted) == "COMPLETED", "sacct's word")


def test_a_component_that_can_never_start_is_refused(slurm, run):
    from cluster.scheduler import SubmissionRefused

    with pytest.raises(SubmissionRefused, match="actor: gpu:16 on a node"):
        submit(ppo(run, 1), run, "slurm", {**SHARES, "actor": Resources(gpus_per_node=16)})
