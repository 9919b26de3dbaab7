"""batch.sh in bash, with programs of our own in the place of Slurm's: the cases that a real cluster makes rare."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes_help import until

CLUSTER = Path(__file__).parents[2] / "cluster"


@pytest.fixture
def tools(tmp_path):
    """scontrol and squeue, which answer with the text of a file; scontrol requeue leaves its words in another."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scontrol = f"""#!/bin/bash
if [ "$1" = requeue ]; then echo "$@" >>{tmp_path}/requeued; [ -z "$TERM_ALL" ] || kill -TERM $$ $PPID; cat {tmp_path}/refusal >&2 2>/dev/null && exit 1; exit 0; fi
cat {tmp_path}/job 2>/dev/null
"""
    for name, text in {"scontrol": scontrol, "squeue": "#!/bin/bash\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def batch(tmp_path, tools):
    """Starts a batch script with these lines between begin and finish."""
    run = tmp_path / "run"
    (run / "job" / "001").mkdir(parents=True)
    started = []

    def start(lines: str, max_requeues: int = 9, **environment: str) -> subprocess.Popen:
        text = f"source {CLUSTER}/slurm.sh\nsource {CLUSTER}/batch.sh\nbegin {run} {run}/job/001 1 {max_requeues}\n{lines}\nfinish\n"
        environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        process = subprocess.Popen(["bash", "-c", text], env={**environ, **environment})
        started.append(process)
        return process

    yield run, start
    for process in started:
        process.kill()
        process.wait()


def outcome(run: Path) -> dict | None:
    path = run / "job" / "001" / "exit.json"
    return json.loads(path.read_text()) if path.exists() else None


STOPPABLE = (
    "component main bash -c 'touch {run}/up; until [ -e {run}/control/stop ]; do sleep 0.05; done; {then}'"
)


def notified(batch, then="exit 0", **options) -> Path:
    """A job that got the scheduler's notice while it ran, and that reacts with `then`."""
    run, start = batch
    process = start(STOPPABLE.format(run=run, then=then), **options)
    until((run / "up").exists, "the trainer's start")
    process.send_signal(signal.SIGUSR2)
    process.wait(20)
    return run


def test_a_notice_asks_for_a_checkpoint_and_queues_again(batch, tmp_path):
    run = notified(batch)
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert outcome(run) is None


def test_being_queued_again_ends_the_script_and_scontrol_before_its_answer(batch, tmp_path):
    """Slurm grants the request and sends SIGTERM to everything in the job, scontrol included."""
    run = notified(batch, TERM_ALL="1")
    assert (tmp_path / "requeued").exists()
    assert outcome(run) is None
    assert "queued again" in (run / "job" / "001" / "batch.log").read_text()


def test_a_trainer_that_dies_of_a_signal_after_a_notice_is_queued_again(batch, tmp_path):
    notified(batch, then="kill -9 $$")
    assert (tmp_path / "requeued").exists()


def test_a_trainer_that_fails_on_its_way_out_is_not_queued_again(batch, tmp_path):
    run = notified(batch, then="exit 3")
    assert not (tmp_path / "requeued").exists()
    assert outcome(run)["returncode"] == 3


def test_a_run_that_finished_meanwhile_is_not_queued_again(batch, tmp_path):
    run = notified(
        batch, then='echo "{\\"status\\": \\"finished\\"}" >$OUT', OUT=str(tmp_path / "run" / "run.json")
    )
    assert not (tmp_path / "requeued").exists()
    assert outcome(run)["returncode"] == 0
    assert not (run / "control" / "stop").exists(), "what the notice asked for is asked no more"


def test_a_run_that_the_user_is_stopping_is_not_queued_again(batch, tmp_path):
    run, start = batch
    (run / "control").mkdir()
    process = start(f"component main bash -c 'touch {run}/up; until [ -e {run}/go ]; do sleep 0.05; done'")
    until((run / "up").exists, "the trainer's start")
    (run / "control" / "stop").touch()
    process.send_signal(signal.SIGUSR2)
    until(lambda: "gave notice" in (run / "job" / "001" / "batch.log").read_text(), "the notice")
    (run / "go").touch()
    process.wait(20)
    assert not (tmp_path / "requeued").exists()
    assert outcome(run)["returncode"] == 0
    assert (run / "control" / "stop").exists()


def test_the_next_attempt_takes_back_the_notice_but_not_the_users_stop(batch, tmp_path):
    run = notified(batch)
    assert (run / "control" / "stop").exists()
    _, start = batch
    start("component main true").wait(20)
    assert not (run / "control" / "stop").exists()
    (run / "control" / "stop").touch()
    start("component main true").wait(20)
    assert (run / "control" / "stop").exists()


def test_a_cluster_that_refuses_to_queue_again_is_quoted(batch, tmp_path):
    (tmp_path / "refusal").write_text('Requested "operation" is disabled\n')
    run = notified(batch)
    assert "could not be queued again (Requested operation is disabled)" in outcome(run)["note"]


def test_the_bound_on_requeues(batch, tmp_path):
    run = notified(batch, max_requeues=2, SLURM_RESTART_COUNT="2")
    assert not (tmp_path / "requeued").exists()
    assert "queued again 2 times" in outcome(run)["note"]


def test_preemption_is_known_by_its_time_and_not_by_the_signal(batch, tmp_path):
    run, start = batch
    (tmp_path / "job").write_text("JobState=RUNNING PreemptTime=None\n")
    start("component main bash -c 'kill -TERM $$'").wait(20)
    assert outcome(run)["returncode"] == 143
    (tmp_path / "job").write_text("JobState=RUNNING PreemptTime=2026-01-01T00:00:00\n")
    start("component main bash -c 'kill -TERM $$'").wait(20)
    assert outcome(run) is None
    assert (tmp_path / "requeued").exists()


@pytest.mark.parametrize(
    ("job", "word"),
    [("JobState=COMPLETING Reason=TimeLimit", "TIMEOUT"), ("JobState=COMPLETING Reason=None", "CANCELLED")],
)
def test_the_schedulers_end_is_remembered(batch, tmp_path, job, word):
    run, start = batch
    (tmp_path / "job").write_text(job)
    process = start(f"component main bash -c 'touch {run}/up; until [ -e {run}/go ]; do sleep 0.05; done'")
    until((run / "up").exists, "the trainer's start")
    process.send_signal(signal.SIGTERM)
    until(lambda: "ends the job" in (run / "job" / "001" / "batch.log").read_text(), "the trap")
    (run / "go").touch()
    process.wait(20)
    assert (run / "job" / "001" / "taken").read_text() == f"{word}\n"
    assert outcome(run) is None


def test_the_main_components_end_leaves_the_others_a_moment(batch):
    run, start = batch
    lines = f"component critic bash -c 'until [ -e {run}/never ]; do sleep 0.05; done'\ncomponent actor true"
    assert start(lines).wait(20) == 0
    assert outcome(run) == {"returncode": 0, "component": "actor", "rank": 0, "note": ""}


def test_a_failing_component_ends_the_others(batch):
    run, start = batch
    lines = f"component critic bash -c 'exit 5'\ncomponent actor bash -c 'until [ -e {run}/never ]; do sleep 0.05; done'"
    assert start(lines).wait(20) == 5
    assert outcome(run)["component"] == "critic"
