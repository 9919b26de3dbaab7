"""A third scheduler is one file and one registration: PBS, against a stand-in that really runs the jobs."""

import os
import sys
from pathlib import Path

import pbs_stand_in
import psutil
import pytest
from processes_help import BOUND_S, python, until

from aligner_lib.tutorial.workspace.workspace import Workspace
from cluster import Job, JobFailed, Resources, RunBusy, State, SubmissionRefused, check, submit, submit_sweep
from cluster.schedulers import availability, schedulers

COMMANDS = ("qsub", "qstat", "qdel", "qsig", "qrerun", "pbsdsh")


@pytest.fixture(autouse=True)
def pbs(tmp_path, monkeypatch) -> Path:
    """The stand-in's folder; its commands are on the PATH, and the scheduler is registered."""
    commands, folder = tmp_path / "bin", tmp_path / "pbs"
    commands.mkdir()
    folder.mkdir()
    for name in COMMANDS:
        # -S: only the process that ends a job's processes needs a package
        text = f'#!/bin/sh\nexec {sys.executable} -S {pbs_stand_in.__file__} {name} "$@"\n'
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PBS_STAND_IN", str(folder))
    monkeypatch.setenv("ALIGNER_SCHEDULERS", "pbs_scheduler")
    return folder


def none_left(job: Job) -> None:
    server = pbs_stand_in.Server(Path(os.environ["PBS_STAND_IN"]))
    until(lambda: not any(server._belongs(p, job.id) for p in psutil.process_iter()), "no process of the job")


def test_a_job_waits_runs_and_finishes_also_while_the_server_does_not_answer(run, gate, pbs, monkeypatch):
    (pbs / "hold").touch()
    job = submit(python(f"print('begun', flush=True); {gate.code}; print('done')"), run, "pbs")
    assert (job.state, job.id, job.record.where) == (State.PENDING, "1.server", "pbs")
    assert job.reason.startswith("Not Running")
    (pbs / "hold").unlink()
    assert next(job.logs(follow=True)) == "begun"
    assert job.state == State.RUNNING and job.nodes == ("node1",)
    with pytest.raises(RunBusy, match=r"RUNNING \(pbs 1\.server\)"):
        submit(["true"], run, "pbs")
    (pbs / "down").touch()
    assert job.state == State.UNKNOWN and "UNKNOWN (PBS does not answer: qstat: cannot connect" in job.news()
    with pytest.raises(
        RunBusy, match=r"UNKNOWN \(pbs 1\.server: PBS does not answer: .* its state is known, choose"
    ):
        submit(["true"], run, "pbs")
    (pbs / "down").unlink()
    gate.open()
    assert Job.attach(run).wait(BOUND_S) == State.FINISHED
    assert job.tail() == "begun\ndone"
    with monkeypatch.context() as unregistered:
        unregistered.delenv("ALIGNER_SCHEDULERS")
        words = r"no scheduler 'pbs'; known are local, slurm, print\. .*ALIGNER_SCHEDULERS"
        with pytest.raises(ValueError, match=words):
            Job.attach(run)


RANKS = """
import os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SEED"]
print(*[os.environ[name] for name in names])
"""


def test_ranks_on_two_nodes_get_torch_distributeds_variables_in_a_folder_with_a_space(tmp_path):
    job = submit(
        python(RANKS),
        tmp_path / "my runs" / "two nodes",
        "pbs",
        Resources(nodes=2, tasks_per_node=2),
        env={"SEED": "a b"},
    )
    job.wait(BOUND_S)
    lines = [job.log_of("main", rank).read_text().strip() for rank in range(4)]
    assert lines == [f"{rank} 4 {rank % 2} 2 node1 20001 a b" for rank in range(4)]


def test_the_rank_that_failed_first_is_named_and_the_others_end(run, gate):
    code = f"import os\nif os.environ['RANK'] == '1':\n    raise ValueError('the loss is nan')\n{gate.code}"
    job = submit(python(code), run, "pbs", Resources(tasks_per_node=2))
    with pytest.raises(JobFailed, match="main rank 1 ended with exit status 1") as failure:
        job.wait(BOUND_S)
    assert failure.value.exception_line == "ValueError: the loss is nan"
    none_left(job)


def test_a_rank_that_could_not_start_fails_the_job(run):
    job = submit(["true"], run, "pbs", Resources(setup=("set -eu", '[ "${1-}" != rank ] || exit 0')))
    with pytest.raises(JobFailed, match="main rank 0 ended with exit status 1"):
        job.wait(BOUND_S)


def test_cancel_ends_all_processes(run, gate):
    job = submit(python(f"print('begun', flush=True); {gate.code}"), run, "pbs")
    assert next(job.logs(follow=True)) == "begun"
    assert job.cancel() == State.CANCELLED
    none_left(job)
    assert job.wait(BOUND_S) == State.CANCELLED


TRAINER = """
import os, pathlib, time
run = pathlib.Path({run!r})
print("attempt", os.environ["ALIGNER_JOB_ATTEMPT"], flush=True)
if os.environ["ALIGNER_JOB_ATTEMPT"].endswith(".1"):
    (run / "run.json").write_text('{{"status": "finished"}}')
else:
    while not (run / "control" / "stop").exists():
        time.sleep(0.02)
"""


def trainer(run: Path) -> list[str]:
    """In its first attempt it ends when it is asked to stop, and in its second it finishes the run."""
    return python(TRAINER.format(run=str(run)))


def test_a_job_that_gets_notice_before_its_time_limit_ends_with_a_checkpoint_and_runs_again(run, monkeypatch):
    monkeypatch.setattr("cluster.resources._EARLY_S", 0)  # the stand-in gives its notice in time
    job = submit(trainer(run), run, "pbs", Resources(time="0:01:00", signal_delay_s=59))
    assert job.wait(BOUND_S) == State.FINISHED
    assert job.tail() == "attempt 1.server.0\nattempt 1.server.1"
    assert not (run / "control" / "stop").exists()


def test_a_site_that_refuses_the_requeue_that_the_user_asks_for_is_quoted(run, pbs):
    (pbs / "no-rerun").touch()
    job = submit(trainer(run), run, "pbs")
    next(job.logs(follow=True))
    job.requeue()
    with pytest.raises(
        JobFailed, match=r"could not be queued again \(qrerun: Unauthorized Request  1\.server\)"
    ):
        job.wait(BOUND_S)


def test_the_printed_script_is_the_submitted_one_and_writes_nothing(run, capsys):
    share = Resources(nodes=2, gpus_per_node=8, mem="512G", exclusive=True, account="me", partition="long")
    plan = submit(["train"], run, "print:pbs", share, name="sft")
    options = "-N sft|-l select=2:ncpus=8:mpiprocs=8:ngpus=8:mem=512gb|-l place=scatter:excl|-l walltime=14400|-q long|-A me"
    for option in options.split("|"):
        assert f"#PBS {option}\n" in plan.text
    assert (plan.nodes, plan.gpus) == (2, 16)
    assert not run.exists()


def test_what_this_scheduler_does_not_have_or_take_is_refused_and_leaves_nothing_behind(run, pbs):
    with pytest.raises(SubmissionRefused, match=r"PBS runs no job of several components \(critic, actor\)"):
        submit({"critic": ["true"], "actor": ["true"]}, run, "pbs")
    with pytest.raises(ValueError, match="an array job, which PBS does not have"):
        submit_sweep({"a": ["true"], "b": ["true"]}, run, "pbs")
    with pytest.raises(SubmissionRefused, match="resources set qos, which this scheduler does not hand"):
        submit(["true"], run, "pbs", Resources(qos="high"))
    assert not run.exists()
    (pbs / "down").touch()
    with pytest.raises(SubmissionRefused, match="PBS refused the job: qsub: cannot connect"):
        submit(["true"], run, "pbs")
    assert not (run / "job" / "001").exists()


# ---- the registration -----------------------------------------------------------------------------------------------


def test_workspace_checks_and_doctor_know_a_registered_scheduler(tmp_path, pbs, capsys):
    assert list(schedulers()) == ["local", "slurm", "pbs"]
    assert Workspace(tmp_path, "smoke", where="auto").where == "pbs"
    assert [str(finding) for finding in check()] == ["ok    PBS: jobs can be submitted"]
    assert [finding.ok for finding in availability()][-1]
    small = {f"model.data.{split}_ds.micro_batch_size": 4 for split in ("train", "validation")}
    plan = Workspace(tmp_path, "smoke", where="print:pbs").submit(
        "sft", resources=Resources(nodes=2), **small
    )
    assert "#PBS -l select=2" in plan.text and "trainer.num_nodes=2" in plan.text
    (pbs / "down").touch()
    assert Workspace(tmp_path, "smoke", where="auto").where == "local"
    (finding,) = check(where="pbs")
    assert not finding.ok and "cannot connect to server" in finding.detail


@pytest.mark.parametrize(
    ("registered", "words"),
    [
        ("pbs_scheduler,pbs_scheduler", "two schedulers have the name 'pbs': rename either"),
        ("nowhere", "names nowhere, which gives no scheduler"),
        ("json", "names json, which gives no scheduler"),
    ],
)
def test_a_registration_that_gives_no_scheduler_is_refused(monkeypatch, registered, words):
    monkeypatch.setenv("ALIGNER_SCHEDULERS", registered)
    with pytest.raises(ValueError, match=words):
        schedulers()
