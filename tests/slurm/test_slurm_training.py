"""A real trainer on a real Slurm that meets its time limit, and a job that does not heed the limit."""

import sys

import pytest
from processes_help import until
from real_trainers import BOUND_S, ONE_THREAD, freeze_after, thaw
from runs_help import batch_log, states_until_the_end
from smoke_jobs import figures

from cluster import JobFailed, Resources, State, submit

STEPS = {"trainer__sft__max_steps": 24}  # many after the fifth, so that no run ends before it is frozen


@pytest.fixture(scope="module")
def deaf(whole_module, jobs):
    """A job that ignores the request to stop. Slurm looks at limits twice a minute, so it goes on beside the other."""
    words = ["bash", "-c", "trap '' TERM; while true; do sleep 1; done"]
    share = Resources(time="2", signal_delay_s=60, sbatch={"nodelist": "n1"})
    return submit(words, jobs.out / "deaf", "slurm", share)


@pytest.fixture(scope="module")
def limited(deaf, jobs):
    """An SFT job that got the time limit's notice after its fifth step, 60 to 90 s after its start. It never looked failed."""
    words = [sys.executable, "-m", "aligner_lib", "sft", "--profile", "smoke"]
    words += jobs.settings("sft", "limited", **STEPS)
    share = Resources(time="5", signal_delay_s=240)
    job = submit(words, jobs.out / "limited", "slurm", share, env=ONE_THREAD)
    freeze_after(5, job, "sft")
    until(lambda: "the scheduler gave notice" in batch_log(job), "the notice", BOUND_S)
    thaw(job, "sft")
    assert not states_until_the_end(job) & {State.FAILED, State.CANCELLED}
    return job


def test_the_time_limits_notice_made_it_checkpoint_first(limited):
    log = batch_log(limited)
    assert log.index("the scheduler gave notice") < log.index("main ended with 0") < log.index("queued again")
    assert "attempt 1 of job" in log
    assert limited.wait() == State.FINISHED
    assert not (limited.run / "control" / "stop").exists()


def test_it_ends_with_the_losses_of_an_unbroken_run(limited, jobs):
    run, unbroken = jobs.run_folder("limited"), jobs.run("sft", "unbroken", **STEPS)
    assert run.status == "finished" and run.info["resumed"] >= 1
    assert figures(run) == figures(unbroken)


def test_a_trainer_that_misses_the_limit_fails_with_the_cure(limited, deaf):
    with pytest.raises(JobFailed, match=r"TIMEOUT: .*signal_delay_s"):
        deaf.wait(BOUND_S)
