"""Jobs on a real Slurm: states, logs, failures, refusals, reattaching."""

import json
import signal
from datetime import datetime

import pytest
from processes_help import python, until
from runs_help import (
    BOUND_S,
    SHORT,
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

from cluster import Job, JobFailed, Resources, RunBusy, State, SubmissionRefused, check, submit
from cluster.queue import QUEUE, accounted_state

# Rank 0 listens on MASTER_PORT, the others connect to MASTER_ADDR and say who they are.
RENDEZVOUS = """
import os, socket
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
rank, size, local, local_size, host, port = (os.environ[name] for name in names)
me = f"{rank}/{size} {local}/{local_size} {os.environ['SLURMD_NODENAME']}"
if rank == "0":
    server = socket.create_server((host, int(port)))
    ranks = [me]
    while len(ranks) < int(size):
        connection, _ = server.accept()
        ranks.append(connection.makefile().read())
    print(*sorted(ranks), sep="\\n")
else:
    for _ in range(1000):
        try:
            connection = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            import time; time.sleep(0.02)
    connection.sendall(me.encode())
"""


def test_ranks_on_two_nodes_meet_at_the_masters_address(slurm, run):
    job = submit(python(RENDEZVOUS), run, "slurm", Resources(nodes=2, tasks_per_node=2, time="5"))
    assert job.wait(BOUND_S) == State.FINISHED
    launch, *ranks = job.log_path.read_text().splitlines()
    assert "4 ranks, rendezvous at n" in launch
    first, second = ranks[0].split()[-1], ranks[2].split()[-1]
    assert first != second
    assert ranks == [f"0/4 0/2 {first}", f"1/4 1/2 {first}", f"2/4 0/2 {second}", f"3/4 1/2 {second}"]


LOOPBACK = """
import os, psutil
from aligner_lib.megatron import parallel
parallel.initialize(timeout_minutes=5)
ranks = parallel.gather_over_all(os.environ["RANK"])
connections = psutil.Process().net_connections("tcp")
print(ranks, {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN})
parallel.barrier()
"""


def test_ranks_on_one_node_open_no_port_to_other_machines(slurm, run):
    job = submit(python(LOOPBACK), run, "slurm", Resources(nodes=1, tasks_per_node=2, time="5"))
    assert job.wait(BOUND_S) == State.FINISHED
    assert job.tail(1) == "['0', '1'] {'127.0.0.1'}"


def test_gpus_are_asked_for_and_seen(slurm, run):
    show = python("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    job = submit(show, run, "slurm", Resources(gpus_per_node=4, tasks_per_node=1, time="5"))
    job.wait(BOUND_S)
    assert job.tail(1) == "0,1,2,3"
    assert job.gpus == 4


def test_a_running_job_tells_where_it_runs_and_how_old_its_heartbeat_is(slurm, run):
    job = submit_and_reach(2, gated(run, 3, 2), run, Resources(nodes=2, time="5"))
    assert job.state == State.RUNNING
    assert len(job.nodes) == 2 and set(job.nodes) <= {"n1", "n2", "n3", "n4"}
    assert 0 <= job.heartbeat_age < BOUND_S
    assert "heartbeat" in job._repr_html_()
    slurm.tool("scontrol", "update", f"jobid={job.id}", "comment=project 42")
    QUEUE.forget(job.id)  # ask now
    assert job.state == State.RUNNING
    with pytest.raises(RunBusy):
        submit(["true"], run, "slurm")
    gate(run).touch()
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(3)


def test_a_failed_rank_gives_its_exception_and_its_last_lines(slurm, run):
    code = "import os, signal\nprint('rank', os.environ['RANK'])\n"
    code += "if os.environ['RANK'] == '1':\n    raise ValueError('loss is nan')\nsignal.pause()"
    job = submit(python(code), run, "slurm", Resources(nodes=2, time="5"), name="sft")
    with pytest.raises(JobFailed) as failure:
        job.wait(BOUND_S)
    assert failure.value.exception_line == "ValueError: loss is nan"
    assert failure.value.returncode == 1
    assert "rank 1" in failure.value.last_lines
    assert "main rank 1 ended with exit status 1" in str(failure.value)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_cancel_ends_the_job_and_is_no_failure(slurm, run, by_hand):
    job = submit_and_reach(1, gated(run, 2, 1), run)
    if by_hand:
        slurm.tool("scancel", job.id)
    else:
        assert job.cancel() == State.CANCELLED
    until(lambda: not slurm.tool("squeue", "-h"), "an empty queue")
    assert job.wait(BOUND_S) == Job.attach(run).state == State.CANCELLED


def test_the_users_stop_ends_the_run_for_good(slurm, run):
    job = submit_and_reach(2, gated(run, 9, 2), run)
    job.stop()
    assert job.wait(BOUND_S) == State.FINISHED
    assert json.loads((run / "run.json").read_text())["status"] == "stopped"
    again = submit(trainer(run, 4), run, "slurm", SHORT)  # submitted again, it goes on
    again.wait(BOUND_S)
    assert losses(run) == unbroken_losses(4)


def test_a_held_job_says_how_to_let_it_go_and_is_in_the_queue_already(slurm, run):
    job = submit(["true"], run, "slurm", SHORT.but(sbatch={"hold": True}))
    until(lambda: "scontrol release" in job.reason, "the cure")
    assert job.state == State.PENDING
    with pytest.raises(ValueError, match="waits in the queue already"):
        job.requeue()
    slurm.tool(*job.reason.split("'")[1].split())
    assert job.wait(BOUND_S) == State.FINISHED
    with pytest.raises(ValueError, match=r"has ended \(FINISHED\): submit the job again"):
        job.requeue()


def test_a_job_that_waits_for_nodes_says_when_it_will_start(slurm, run, tmp_path):
    """Behind a job that has all nodes for ten minutes."""
    whole = Resources(nodes=4, exclusive=True, time="10")
    submit_and_reach(1, gated(run, 2, 1), run, whole)
    second = submit(["true"], tmp_path / "second", "slurm", whole)
    estimate = until(lambda: second.start_estimate, "an estimate")
    minutes = (datetime.fromisoformat(estimate) - datetime.now()).total_seconds() / 60
    assert 8 < minutes < 11
    assert second.status.reason in ("Resources", "Priority")
    assert f"estimated start {estimate}" in second._repr_html_()
    assert second.cancel() == State.CANCELLED


def test_the_notebook_kernels_variables_stay_behind(slurm, run, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("HF_HOME", "/cache")
    show = python(
        "import os; print(*[os.environ.get(n) for n in ('MPLBACKEND', 'JUPYTERHUB_API_TOKEN', 'HF_HOME', 'A')])"
    )
    job = submit(show, run, "slurm", SHORT, env={"A": "it's $HOME"})
    job.wait(BOUND_S)
    assert job.tail(1) == "None None /cache it's $HOME"


def test_ranks_of_a_job_without_the_submitters_environment_have_the_jobs_own(slurm, run):
    share = SHORT.but(sbatch={"export": "NONE"}, setup=("export B=2",))
    show = python("import os; print(*map(os.environ.get, ['A', 'B', 'ALIGNER_JOB_FOLDER']))")
    job = submit(show, run, "slurm", share, env={"A": 1})
    job.wait(BOUND_S)
    assert job.tail(1) == f"1 2 {job.folder}"


def test_the_controllers_restart_disturbs_no_run(slurm, run):
    job = submit_and_reach(1, gated(run, 3, 1), run)
    slurm.kill("slurmctld", signal.SIGTERM)
    QUEUE.forget(job.id)  # ask now
    assert job.state == State.UNKNOWN
    assert "does not answer" in job.reason
    slurm.start_controller()
    until(lambda: job.state == State.RUNNING, "the controller's answer")
    gate(run).touch()
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(3)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (Resources(partition="nope"), "partition 'nope' does not exist; there are debug, urgent"),
        (Resources(account="nope"), "account 'nope'; yours are course"),
        (Resources(qos="nope"), "Slurm refused the job"),
        (Resources(sbatch={"no-such-flag": 1}), "no-such-flag"),
    ],
)
def test_what_cannot_run_is_refused_at_submission(accounts, run, resources, words):
    with pytest.raises(SubmissionRefused) as refused:
        submit(["true"], run, "slurm", resources)
    assert words in str(refused.value)
    assert not (run / "job" / "job.json").exists()


def test_two_clusters_with_the_same_job_ids_are_not_mixed(slurm, accounts, run, tmp_path, monkeypatch):
    there = submit(gated(run, 2, 1), run, "slurm", SHORT)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.tool("scontrol", "update", f"FirstJobId={there.id}")
    here = None
    for index in range(1 + int(there.id)):  # until the id comes round here too
        here = submit(["true"], tmp_path / f"run{index}", "slurm", SHORT)
        if int(here.id) >= int(there.id):
            break
    assert here.wait(BOUND_S) == State.FINISHED
    elsewhere = Job.attach(run)
    assert elsewhere.state == State.UNKNOWN
    assert "cluster accounts" in elsewhere.reason
    monkeypatch.setenv("SLURM_CONF", str(accounts.conf))
    until(lambda: elsewhere.state == State.RUNNING, "the start over there")
    gate(run).touch()
    assert elsewhere.wait(BOUND_S) == State.FINISHED


def test_accounting_remembers_what_the_queue_has_forgotten(accounts, run, tmp_path):
    assert "ok    accounting: sacct answers" in map(str, check(shared=tmp_path, probe=False))
    job = submit_and_reach(1, gated(run, 2, 1), run, name="sft")
    accounts.tool("scancel", job.id)
    submitted = job.record.submitted
    until(lambda: accounted_state(job.id, "sft", submitted) == "CANCELLED", "sacct's answer")
    assert accounted_state(job.id, "another", submitted) == ""
    assert accounted_state(job.id, "sft", submitted + 3600) == ""  # an older job with this id


def test_accounting_tells_both_components(accounts, run):
    commands = {"critic": critic(run), "actor": trainer(run, 1, "--critic")}
    job = submit(commands, run, "slurm", {"critic": SHORT, "actor": SHORT}, name="ppo")
    assert job.wait(BOUND_S) == State.FINISHED
    until(lambda: accounted_state(job.id, "ppo", job.record.submitted) == "COMPLETED", "sacct's answer")


def test_a_run_that_loses_its_node_goes_on_at_another_and_never_looks_failed(accounts, run):
    """sacct says NODE_FAIL for some seconds, while Slurm has queued the job again."""
    job = submit_and_reach(2, gated(run, 4, 2), run, Resources(time="5", exclusive=True))
    (lost_node,) = until(lambda: job.nodes, "the node")
    accounts.set_node(lost_node, "down")
    gate(run).touch()
    seen = states_until_the_end(job)
    assert job.wait(BOUND_S) == State.FINISHED
    assert losses(run) == unbroken_losses(4)
    assert not seen & {State.FAILED, State.CANCELLED}
    first, second = [line.split()[-1] for line in batch_log(job).splitlines() if " on n" in line]
    assert first == lost_node != second


def test_print_shows_a_script_that_slurm_takes_and_sends_nothing(slurm, run, tmp_path, capsys):
    plan = submit(trainer(run, 1), run, "print", Resources(nodes=2, gpus_per_node=8, exclusive=True))
    assert capsys.readouterr().out == plan.text + "\n"
    assert "#SBATCH --exclusive" in plan.text and plan.gpus == 16
    assert not run.exists()
    assert str(run) not in slurm.tool("squeue", "-h", "-t", "all", "-o", "%k")
    (tmp_path / "plan.sh").write_text(plan.text)
    assert slurm.succeeds("sbatch", "--test-only", str(tmp_path / "plan.sh"))
