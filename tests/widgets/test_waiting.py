"""How a monitor says that a run has ended, and how."""

import asyncio
import json
import multiprocessing
import os
import re
import shutil
import threading
import time
from types import SimpleNamespace

import fake_trainer
import pytest
from run_folders import change_info

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from cluster import processes, record
from widgets import JobPanel, Monitor
from widgets.figures.static_figure import LivePicture
from widgets.frontend.wire import unpack
from widgets.runs.following import keep_looking
from widgets.runs.waiting import RunFailed, RunLost, until_over, verdict


def attempt(run: RunFolder, end: str, steps: int = 0) -> None:
    """One attempt of a run, which ends so after its steps; `lost`: its process dies."""
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        for step in range(1, steps + 1):
            writer.log(step, {"train/loss": 1.0})
        if end == "lost":
            os._exit(9)
        writer.finish(end)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def failed(run) -> RunFolder:
    with pytest.raises(FloatingPointError):
        fake_trainer.train(run.path, "sft", fail_at=3)
    return run


def job_of(state: str, submitted: float = 0.0) -> SimpleNamespace:
    """The handle of a job whose critic failed, while the log of its actor is empty."""
    status, submission = SimpleNamespace(component="critic"), SimpleNamespace(submitted=submitted)
    logs = {"actor": "", "critic": "ImportError: no torch"}
    return SimpleNamespace(
        state=state,
        status=status,
        record=submission,
        tail=lambda: logs["actor"],
        failure_lines=lambda status: logs[status.component],
    )


def heading(monitor: Monitor) -> dict:
    """What a monitor of one run says above its charts."""
    [head] = unpack(monitor._feed.snapshot())[0]["runs"]
    return head


# ---- verdicts -------------------------------------------------------------------------------------------------------


def test_a_finished_and_a_stopped_run_name_their_last_step(healthy, run):
    assert verdict(RunFolder(healthy)) == "healthy finished after step 60."
    attempt(run, "stopped", steps=1)
    assert verdict(run).startswith("run was stopped after step 1")


def test_failed_gives_the_runs_own_message(failed):
    message = "failed at step 2: the loss is NaN at step 7: lower the learning rate"
    with pytest.raises(RunFailed, match=message):
        verdict(failed)
    with pytest.raises(RunFailed, match=r"the loss is NaN(.|\n)*The end of its log:\nImportError: no torch"):
        verdict(failed, job_of("FAILED"))


def test_a_process_that_was_killed_is_lost(run):
    process = multiprocessing.get_context("fork").Process(target=attempt, args=(run, "lost", 1))
    process.start()
    process.join()
    with pytest.raises(RunLost, match="left no message after step 1"):
        verdict(run)


def test_of_a_lost_run_on_a_full_disk_the_disk_is_told(run, monkeypatch):
    attempt(run, "finished", steps=1)
    change_info(run.path, status="running", pid=2**22 + 1, message="")  # no process has this number
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 20))
    words = r"The run's disk is full \(3 MiB are free\): remove files"
    with pytest.raises(RunLost, match=f"left no message after step 1. {words}"):
        verdict(run)
    monitor = Monitor(run)
    monitor.close()
    assert re.match(words, heading(monitor)["message"])


def test_of_a_silent_run_on_another_machine_no_cause_is_invented(run):
    attempt(run, "finished", steps=1)
    change_info(run.path, status="running", host="elsewhere", message="", heartbeat={"time": 0.0, "step": 1})
    words = r"no sign of life since 19[67]\d-.*, after step 1; its process can't be checked from here"
    with pytest.raises(RunLost, match=f"run is lost: {words}"):
        verdict(run)
    monitor = Monitor(run)
    monitor.close()
    assert re.fullmatch(words, heading(monitor)["message"])


def test_a_job_that_died_before_its_run_began(run):
    job = job_of("FAILED")
    assert list(until_over([run], job, timeout=None)) == []
    with pytest.raises(RunLost, match="no torch"):
        verdict(run, job)


def test_a_failed_job_is_no_success_whatever_the_folder_says(run):
    attempt(run, "finished")
    with pytest.raises(
        RunFailed, match=r"its job failed, .*finished after step 0(.|\n)*ImportError: no torch"
    ):
        verdict(run, job_of("FAILED", run.info["heartbeat"]["time"] + 1))
    change_info(run.path, status="stopped", message="stopped while loading (SIGTERM)")
    words = r"its job failed, and the run stopped after step 0: stopped while loading \(SIGTERM\)\.\n"
    with pytest.raises(RunFailed, match=words):
        verdict(run, job_of("FAILED", run.info["heartbeat"]["time"] - 1))


def test_a_folder_that_is_deleted_while_it_is_watched_is_reported_and_ends_the_wait(run):
    attempt(run, "stopped", steps=1)
    monitor = Monitor(run.path)
    shutil.rmtree(run.path)
    try:
        with pytest.raises(RunLost, match=f"its folder {run.path} was deleted"):
            monitor.wait(timeout=30)
        assert monitor.runs[0].is_over and heading(monitor)["status"] == "deleted"
        assert "all that is left" in heading(monitor)["message"]
    finally:
        monitor.close()
    assert RunFolder(run.path).status == "waiting", "a folder that was never there is a run to come"


def test_awaiting_a_monitor_waits_for_the_run_and_raises_its_failure(run):
    with RunWriter(run.path, kind="sft", config={}, seed=0, hashes={}, max_steps=5) as writer:
        writer.start(0)
        writer.log(1, {"train/loss": 1.0})
        monitor = Monitor(run)
        try:
            with pytest.raises(TimeoutError):
                asyncio.run(monitor.wait_async(timeout=0))
            writer.finish("failed", "the loss is NaN")
            with pytest.raises(RunFailed, match="the loss is NaN"):
                asyncio.run(monitor.wait_async())
        finally:
            monitor.close()


def test_a_picture_outside_ipython_has_no_handles_and_raises_nothing(monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: None)
    feed = SimpleNamespace(series=[])
    picture = LivePicture([], feed, threading.RLock())
    monkeypatch.setattr(picture, "_seen", lambda: ["changed"])
    picture.show()
    assert picture.draw() is False
    picture.show()


def test_a_picture_is_sent_before_another_thread_draws_a_later_one(monkeypatch):
    """Else the picture of an earlier step could be sent last, and would stay in the notebook."""
    picture, free = LivePicture([], SimpleNamespace(series=[]), threading.RLock()), []
    picture._handles = [SimpleNamespace(update=lambda *_, **__: None)]

    def draw_while_another_thread_tries():
        other = threading.Thread(target=lambda: free.append(picture._sending.acquire(blocking=False)))
        other.start()
        other.join()
        return [("picture", {})]

    monkeypatch.setattr(picture, "_outputs", draw_while_another_thread_tries)
    picture.draw()
    assert free == [False]


# ---- when a run is over -----------------------------------------------------------------------------------------------


def is_over(run: RunFolder, job) -> bool:
    return next(until_over([run], job, timeout=None), "over") == "over"


def test_a_stopped_run_whose_job_is_queued_again_is_not_over(run):
    """Preempted, or out of time: it saved, and waits for its next attempt."""
    attempt(run, "stopped")
    states = {"PENDING": False, "RUNNING": False, "FINISHED": True, "CANCELLED": True}
    assert {state: is_over(run, SimpleNamespace(state=state)) for state in states} == states


def test_a_finished_run_does_not_end_the_wait_for_a_newer_job(run):
    attempt(run, "finished")
    ended = run.info["heartbeat"]["time"]
    assert is_over(run, SimpleNamespace(state="RUNNING"))
    assert is_over(run, job_of("RUNNING", ended - 1))
    assert not is_over(run, job_of("PENDING", ended + 1))


def test_waiting_is_bounded(run):
    with pytest.raises(TimeoutError, match=r"run \(waiting\)"):
        list(until_over([run], None, timeout=-1))
    attempt(run, "stopped")
    with pytest.raises(TimeoutError, match=r"not over: run \(stopped; its job is running\); wait"):
        list(until_over([run], job_of("RUNNING"), timeout=-1))


def test_looking_goes_on_after_an_error_of_the_file_system(caplog):
    closed, looks = threading.Event(), []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) < 4:
            raise OSError(116, "Stale file handle")
        closed.set()

    keep_looking(closed, 0.001, look)
    assert looks == [0, 1, 2, 3]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["can't read: OSError: [Errno 116] Stale file handle"]


# ---- a folder that is as an earlier job left it ---------------------------------------------------------------------


def test_a_job_that_was_submitted_again_does_not_show_the_old_failure(failed):
    job = job_of("PENDING", time.time() + 1)
    monitor = Monitor(failed.path, job=job)
    try:
        assert heading(monitor)["status"] == "waiting" and "submitted again" in heading(monitor)["message"]
        sent = []
        monitor.send = lambda content, buffers=(): sent.append(content["kind"])
        monitor._said_at = float("-inf")
        monitor.refresh()
        assert sent, "the page is not told that the kernel is alive"
        monitor._handle({"kind": "stop"})
        assert (failed.path / "control" / "stop").exists()
        job.record.submitted = 0.0  # the folder is of this job
        assert heading(monitor)["status"] == "failed"
    finally:
        monitor.close()


def statuses_without_a_job(run: RunFolder) -> tuple[str, str]:
    """The statuses in a monitor and in a panel that know the run folder alone."""
    monitor, panel = Monitor(run), JobPanel(run)
    try:
        return heading(monitor)["status"], panel.view["status"]
    finally:
        monitor.close()
        panel.close()


def test_without_the_jobs_handle_the_folders_record_of_the_submission_counts(failed):
    """The record is of a local job that was submitted after the failure and lives: this process."""
    folder = record.new_submission_folder(failed.path)
    handle = record.Record(
        where="local",
        id=str(os.getpid()),
        name="run",
        folder=str(folder.relative_to(failed.path)),
        components={"main": ["true"]},
        identity=processes.identity(os.getpid()),
        submitted=time.time() + 1,
    )
    record.write(failed.path, handle)
    assert statuses_without_a_job(failed) == ("waiting", "waiting") and not is_over(failed, None)

    handle.submitted = 0.0  # the failure is of this submission's attempt
    record.write(failed.path, handle)
    assert statuses_without_a_job(failed) == ("failed", "failed")

    handle.submitted = time.time() + 1
    record.write(failed.path, handle)
    (folder / "exit.json").write_text(json.dumps({"returncode": 1}))
    assert failed.latest_job().state.final, "the job ended without an attempt of its own"
    assert statuses_without_a_job(failed) == ("failed", "failed") and is_over(failed, None)
