"""Hetjobs: critic on one component, actor on the other."""

import contextlib

import psutil
import pytest
from processes_help import until
from runs_help import (
    BOUND_S,
    batch_log,
    critic,
    gate,
    gated,
    losses,
    states_until_the_end,
    submit_and_reach,
    trainer,
    unbroken_losses,
)

from cluster import Job, JobFailed, Resources, State, SubmissionRefused, processes, submit

SHARES = {
    "critic": Resources(nodes=1, gpus_per_node=2, tasks_per_node=1, time="5", linger_s=20),
    "actor": Resources(nodes=2, gpus_per_node=8, tasks_per_node=1, time="5", linger_s=20),
}


def ppo(run, steps: int) -> dict[str, list[str]]:
    """The actor waits at step 2."""
    return {"critic": critic(run), "actor": gated(run, steps, 2, "--critic")}


def programs(job: Job) -> set[str]:
    """Names of the programs that run for the job; Slurm's short-lived helpers may end while their names are read."""
    names = set()
    for process in processes.of_job(str(job.folder)):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


def test_both_components_run_meet_and_end(slurm, run):
    job = submit_and_reach(2, ppo(run, 3), run, SHARES)
    status = job.status
    assert status.state == State.RUNNING
    assert len(status.nodes) == 3
    assert job.gpus == 18
    gate(run).touch()
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(3)
    assert f"critic at {status.nodes[0]}" in job.log_path.read_text()
    assert "critic ready" in job.log_of("critic").read_text()
    ports = {name: job.log_of(name).read_text().split("rendezvous at ")[1].split(",")[0] for name in SHARES}
    assert ports["critic"].split(":")[1] != ports["actor"].split(":")[1]


def test_a_cancel_of_one_component_takes_both_with_all_their_processes(slurm, run):
    job = submit_and_reach(2, ppo(run, 3), run, SHARES)
    assert "sleep" in programs(job)  # the critic's server
    slurm.tool("scancel", f"{job.id}+1")
    assert job.wait(BOUND_S) == State.CANCELLED
    until(lambda: not slurm.tool("squeue", "-h"), "an empty queue")
    until(lambda: not processes.of_job(str(job.folder)), lambda: f"no orphan: {slurm.describe(job)}")


def test_a_critic_that_fails_ends_the_actor_and_is_named(slurm, run):
    commands = {"critic": critic(run, "fail"), "actor": trainer(run, 3, "--critic")}
    with pytest.raises(JobFailed) as failure:
        submit(commands, run, "slurm", SHARES).wait(BOUND_S)
    assert failure.value.exception_line == "OSError: port 5567 is taken"
    assert "critic rank 0" in str(failure.value)


@pytest.mark.parametrize("lost", ["the actor's node is set down", "the critic's node loses its power"])
def test_a_lost_node_requeues_both(slurm, run, lost):
    """The critic's node also runs the batch script; Slurm itself queues only that component again."""
    job = submit_and_reach(2, ppo(run, 5), run, SHARES)
    critic_node, actor_node, _ = until(lambda: job.nodes, "the nodes")
    if lost.startswith("the actor"):
        slurm.set_node(actor_node, "down")
    else:
        slurm.power_cut(critic_node, job.id)
    until(
        lambda: "attempt 1 of job" in batch_log(job),
        lambda: f"the next attempt: {slurm.describe(job)}",
        BOUND_S,
    )
    gate(run).touch()
    seen = states_until_the_end(job)
    assert job.wait() == State.FINISHED
    assert not seen & {State.FAILED, State.CANCELLED}
    assert losses(run) == unbroken_losses(5)
    assert job.log_path.read_text().count("critic at") == 2  # found anew, not the old announcement


def test_requeue_of_a_hetjob_checkpoints_first(slurm, run):
    shares = {name: share.but(linger_s=1) for name, share in SHARES.items()}
    job = submit_and_reach(2, ppo(run, 5), run, shares)
    job.requeue()
    until(lambda: "attempt 1 of job" in batch_log(job), "the next attempt")
    gate(run).touch()
    assert Job.attach(run).wait(BOUND_S) == State.FINISHED
    assert "stopping for control/stop at step 2" in job.log_path.read_text()
    assert losses(run) == unbroken_losses(5)


def test_a_component_that_can_never_start_is_refused(slurm, run):
    with pytest.raises(SubmissionRefused, match="actor: gpu:16 on a node"):
        submit(ppo(run, 1), run, "slurm", {**SHARES, "actor": Resources(gpus_per_node=16)})
