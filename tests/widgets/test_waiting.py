"""How the end of a run is told."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import fake_trainer
import pytest

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from cluster import processes, record
from widgets import JobPanel, Monitor
from widgets.frontend.wire import unpack
from widgets.runs.waiting import RunFailed, RunLost, keep_looking, until_over, verdict

ROOT = Path(__file__).resolve().parents[2]


def test_finished(healthy):
    assert verdict(RunFolder(healthy)) == "healthy finished after step 60."


def test_failed_gives_the_runs_own_message(tmp_path):
    with pytest.raises(FloatingPointError):
        fake_trainer.train(tmp_path / "run", "sft", fail_at=3)
    with pytest.raises(
        RunFailed, match="failed at step 2: the loss is NaN at step 7: lower the learning rate"
    ):
        verdict(RunFolder(tmp_path / "run"))


def test_a_folder_that_is_deleted_while_it_is_watched_is_said_and_ends_the_wait(tmp_path):
    run = RunFolder(tmp_path / "run")
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        writer.log(1, {"train/loss": 1.0})
        monitor = Monitor(run.path)
        shutil.rmtree(run.path)
        try:
            [watched] = monitor.runs
            with pytest.raises(RunLost, match=f"its folder {run.path} was deleted"):
                monitor.wait(timeout=30)
            [heading] = unpack(monitor._feed.snapshot())[0]["runs"]
        finally:
            monitor.close()
        assert watched.is_over and heading["status"] == "deleted"
        assert "all that is left" in heading["message"]
        assert RunFolder(run.path).status == "waiting", "a folder that was never there is a run to come"
        run.path.mkdir()


def test_a_job_that_was_submitted_again_does_not_show_the_old_failure(tmp_path):
    with pytest.raises(FloatingPointError):
        fake_trainer.train(tmp_path / "run", "sft", fail_at=3)
    job = SimpleNamespace(state="PENDING", record=SimpleNamespace(submitted=time.time() + 1))
    monitor = Monitor(tmp_path / "run", job=job)
    try:
        [heading] = unpack(monitor._feed.snapshot())[0]["runs"]
        assert heading["status"] == "waiting" and "submitted again" in heading["message"]
        job.record.submitted = 0.0  # the folder is of this job
        [heading] = unpack(monitor._feed.snapshot())[0]["runs"]
        assert heading["status"] == "failed"
    finally:
        monitor.close()


@pytest.fixture
def submitted_again(tmp_path) -> RunFolder:
    """A failed run, and the record of a local job that was submitted later and lives: this process."""
    run = RunFolder(tmp_path / "run")
    with pytest.raises(FloatingPointError):
        fake_trainer.train(run.path, "sft", fail_at=3)
    folder = record.new_submission_folder(run.path)
    handle = record.Record(
        where="local",
        id=str(os.getpid()),
        name="run",
        folder=str(folder.relative_to(run.path)),
        components={"main": ["true"]},
        identity=processes.identity(os.getpid()),
        submitted=time.time() + 1,
    )
    record.write(run.path, handle)
    return run


def test_without_the_jobs_handle_the_folders_record_of_the_submission_counts(submitted_again):
    run = submitted_again
    monitor, panel = Monitor(run), JobPanel(run)
    try:
        [heading] = unpack(monitor._feed.snapshot())[0]["runs"]
        assert heading["status"] == "waiting" and "submitted again" in heading["message"]
        view = panel.view
        assert (view["status"], view["message"]) == ("waiting", "") and "submitted again" in view["said"]
        assert next(until_over([run], None, timeout=None)) > 0
    finally:
        monitor.close()
        panel.close()
    job = run.latest_job()
    record.write_json(job.folder / "exit.json", {"returncode": 1})
    assert job.state.final, "the job ended without an attempt of its own"
    monitor, panel = Monitor(run), JobPanel(run)
    try:
        [heading] = unpack(monitor._feed.snapshot())[0]["runs"]
        assert (heading["status"], panel.view["status"]) == ("failed", "failed")
        assert list(until_over([run], None, timeout=None)) == []
    finally:
        monitor.close()
        panel.close()


def test_an_older_submission_does_not_hide_a_failure(submitted_again):
    run = submitted_again
    handle = record.read(run.path)
    handle.submitted = 0.0  # the failure is of this submission's attempt
    record.write(run.path, handle)
    monitor = Monitor(run)
    try:
        assert unpack(monitor._feed.snapshot())[0]["runs"][0]["status"] == "failed"
    finally:
        monitor.close()


def test_stopped_names_its_checkpoint(tmp_path):
    run = RunFolder(tmp_path / "run")
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        writer.log(1, {"train/loss": 1.0})
        writer.finish("stopped")
    assert verdict(run).startswith("run was stopped after step 1")


def test_a_process_that_was_killed_is_lost(tmp_path):
    code = f"""
import os, signal
from aligner_lib.run_folder.writer import RunWriter
with RunWriter({str(tmp_path / "run")!r}, kind="sft", config={{}}, seed=0, hashes={{}}, max_steps=5) as writer:
    writer.start(0)
    writer.log(1, {{"train/loss": 1.0}})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60)
    with pytest.raises(RunLost, match="left no message after step 1"):
        verdict(RunFolder(tmp_path / "run"))


def test_a_job_that_died_before_its_run_began(tmp_path):
    class Job:
        state = "FAILED"

        def tail(self):
            return "no such partition"

    run = RunFolder(tmp_path / "run")
    assert list(until_over([run], Job(), timeout=None)) == []
    with pytest.raises(RunLost, match="no such partition"):
        verdict(run, Job())


def test_a_stopped_run_whose_job_is_queued_again_is_not_over(tmp_path):
    """Preempted, or out of time: it saved, and waits for its next attempt."""
    run = RunFolder(tmp_path / "run")
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        writer.finish("stopped")
    for state, over in (("PENDING", False), ("RUNNING", False), ("FINISHED", True), ("CANCELLED", True)):
        job = SimpleNamespace(state=state)
        assert (next(until_over([run], job, timeout=None), "over") == "over") == over
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        writer.finish("finished")
    assert list(until_over([run], SimpleNamespace(state="RUNNING"), timeout=None)) == []


def test_waiting_is_bounded(tmp_path):
    with pytest.raises(TimeoutError, match=r"run \(waiting\)"):
        list(until_over([RunFolder(tmp_path / "run")], None, timeout=-1))


# ---- a folder that is as an earlier job left it ---------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        writer.finish("finished")
    return run


def job_of(state: str, submitted: float) -> SimpleNamespace:
    return SimpleNamespace(
        state=state, record=SimpleNamespace(submitted=submitted), tail=lambda: "ImportError: no torch"
    )


def test_a_finished_run_does_not_end_the_wait_for_a_newer_job(finished):
    ended = finished.info["heartbeat"]["time"]
    assert list(until_over([finished], job_of("RUNNING", ended - 1), timeout=None)) == []
    assert next(until_over([finished], job_of("PENDING", ended + 1), timeout=None)) > 0


def test_a_failed_job_is_no_success_whatever_the_folder_says(finished):
    with pytest.raises(
        RunFailed, match=r"its job failed, .*finished after step 0(.|\n)*ImportError: no torch"
    ):
        verdict(finished, job_of("FAILED", finished.info["heartbeat"]["time"] + 1))


def test_a_failed_run_shows_the_end_of_its_job_s_log(tmp_path):
    with pytest.raises(FloatingPointError):
        fake_trainer.train(tmp_path / "run", "sft", fail_at=3)
    with pytest.raises(RunFailed, match=r"the loss is NaN(.|\n)*The end of its log:\nImportError: no torch"):
        verdict(RunFolder(tmp_path / "run"), job_of("FAILED", 0.0))


def test_looking_goes_on_after_what_could_not_be_read(caplog):
    closed, seen = threading.Event(), []

    def look() -> None:
        seen.append(len(seen))
        if len(seen) < 4:
            raise OSError(116, "Stale file handle")
        closed.set()

    keep_looking(closed, 0.001, look)
    assert seen == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "can't read: OSError: [Errno 116] Stale file handle"
    ]
