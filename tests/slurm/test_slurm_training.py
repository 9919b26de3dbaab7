"""The real trainers on a real Slurm: several nodes, and every way in which a scheduler takes them away."""

from types import SimpleNamespace

import pytest
import torch
from processes_help import until
from smoke_jobs import figures
from survivors import BOUND_S, ONE_THREAD, Survivor, command, preemptor, until_all

from aligner_lib.tutorial import Workspace
from cluster import JobFailed, Resources, State, submit

STEPS = {"trainer__sft__max_steps": 24}  # many after the fifth, so that no run ends before it is frozen
FAULTS = ("time_limit", "preempted", "lost_node")


@pytest.fixture(scope="module")
def unbroken(jobs):
    """The SFT run that nobody disturbs, in one process, without Slurm."""
    return jobs.run("sft", "unbroken", **STEPS)


@pytest.fixture(scope="module")
def survived(whole_module, jobs, tmp_path_factory):
    """A run for each fault, all at once: most of the time goes into Slurm's own waiting."""
    slurm = whole_module
    shares = {
        # Slurm looks at limits twice a minute: the notice comes after 40 to 70 s, and the end is far off.
        "time_limit": Resources(time="5", signal_delay_s=260, sbatch={"nodelist": "n1"}),
        "preempted": Resources(time="30", exclusive=True, partition="debug", sbatch={"nodelist": "n4"}),
        "lost_node": Resources(time="30", exclusive=True, sbatch={"exclude": "n1"}),
    }
    deaf = ["bash", "-c", "trap '' TERM; while true; do sleep 1; done"]
    missed = submit(
        deaf, jobs.out / "deaf", "slurm", Resources(time="1", signal_delay_s=30, sbatch={"nodelist": "n1"})
    )
    runs = {
        fault: Survivor(jobs.run_folder(fault), "sft", command(jobs, "sft", fault, **STEPS), share)
        for fault, share in shares.items()
    }
    until_all(runs.values(), lambda run: run.freeze_after(5), "step 5 of each")

    (lost,) = runs["lost_node"].nodes
    slurm.set_node(lost, "down")
    urgent = preemptor(runs["preempted"], "n4", tmp_path_factory.mktemp("urgent"))
    until(lambda: runs["preempted"].is_being_preempted(slurm), "the preemption")
    runs["preempted"].thaw()
    until(lambda: "the scheduler gave notice" in runs["time_limit"].batch_log, "the notice", BOUND_S)
    runs["time_limit"].thaw()
    until_all(runs.values(), Survivor.has_ended, "the end of each")
    return SimpleNamespace(runs=runs, lost=lost, urgent=urgent, missed=missed)


def dpo_losses(chosen, rejected, reference_chosen, reference_rejected, beta):
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -torch.nn.functional.logsigmoid(beta * margin)


def test_a_learner_s_function_trains_in_a_job_of_its_own(slurm, smoke, tmp_path, monkeypatch):
    """As a notebook's cell submits it: its text lies in the run folder, which the node sees, too."""
    monkeypatch.setattr(Workspace, "policy", lambda self: smoke)
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    short = {"trainer.dpo.max_steps": 2, "model.dpo.num_val_samples": 0}
    learner, library = (Workspace(tmp_path, "smoke", where=where) for where in ("slurm", "local"))
    job = learner.submit("dpo", "own", loss=dpo_losses, **short)
    library.submit("dpo", "library", **short).wait(BOUND_S)
    assert job.record.where == "slurm" and job.wait(BOUND_S) == State.FINISHED
    own, reference = learner.run("own"), library.run("library")
    file = own.path / "functions" / "loss.py"
    assert f"functions.loss: dpo_losses of {file}, in place of" in job.log_path.read_text()
    assert len(figures(own)) == 3 and figures(own) == figures(reference)


@pytest.mark.parametrize("fault", FAULTS)
def test_it_ends_with_the_losses_of_an_unbroken_run(survived, unbroken, fault):
    run = survived.runs[fault].run
    assert run.status == "finished"
    assert run.info["resumed"] >= 1
    assert figures(run) == figures(unbroken)


@pytest.mark.parametrize("fault", FAULTS)
def test_it_never_looked_failed(survived, fault):
    survivor = survived.runs[fault]
    assert "attempt 1 of job" in survivor.batch_log
    assert survivor.job.wait() == State.FINISHED
    assert not survivor.seen & {State.FAILED, State.CANCELLED}
    assert not (survivor.run.path / "control" / "stop").exists()


def test_the_time_limits_notice_made_it_checkpoint_first(survived):
    log = survived.runs["time_limit"].batch_log
    assert log.index("the scheduler gave notice") < log.index("main ended with 0") < log.index("queued again")


def test_the_urgent_job_had_the_node_meanwhile(survived):
    assert survived.urgent.wait(BOUND_S) == State.FINISHED
    assert "queued again" in survived.runs["preempted"].batch_log


def test_the_run_that_lost_its_node_went_on_another(survived):
    nodes = [
        line.split()[-1] for line in survived.runs["lost_node"].batch_log.splitlines() if " on n" in line
    ]
    assert nodes[0] == survived.lost != nodes[1]


def test_a_trainer_that_misses_the_limit_fails_with_the_cure(survived):
    """It ignores the request to stop, and the limit passes."""
    with pytest.raises(JobFailed, match=r"TIMEOUT: .*signal_delay_s"):
        survived.missed.wait(BOUND_S)


def test_a_trainers_mistake_is_told_in_the_notebook(slurm, jobs):
    words = command(jobs, "sft", "mistaken", model__restore_from_path="/no/such/model")
    job = submit(words, jobs.out / "mistaken", "slurm", Resources(time="30"), env=ONE_THREAD)
    with pytest.raises(JobFailed) as failure:
        job.wait(BOUND_S)
    assert "mistaken failed: error (rank 0): " in str(failure.value)
    assert "/no/such/model" in failure.value.exception_line
    assert failure.value.last_lines.splitlines()[-1] in job.log_path.read_text()
