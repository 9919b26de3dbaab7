"""Runs and their exporters: whatever becomes of an exporter, the run has the same figures and ends as soon as without."""

import os
import resource
import signal
import socket
import time

import forks
import psutil
import pytest
from smoke_jobs import EXPORTED, figures, run_smoke_job

from aligner_lib.run_folder.exporters import process, services, tail
from aligner_lib.run_folder.reader import RunFolder

BOUND_S = 0.5  # that these runs wait for their exporters, in place of process.END_SECONDS


def run_with_short_wait(settings: list[str]) -> None:
    process.END_SECONDS = BOUND_S
    run_smoke_job("sft", settings)


def exporter_of(run: RunFolder, name: str) -> psutil.Process:
    """The exporter's process, once it has its lock."""
    lock = run.path / "exporters" / f"{name}.lock"
    return psutil.Process(int(forks.until(lambda: lock.exists() and lock.read_text(), "the exporter begins")))


def tensorboard_losses(run: RunFolder) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


def kill(exporter: psutil.Process) -> None:
    exporter.kill()


def hang(exporter: psutil.Process) -> None:
    exporter.send_signal(signal.SIGSTOP)


def fill_its_disk(exporter: psutil.Process) -> None:
    """Its files can't grow: what it writes from now on fails, as on a full disk."""
    resource.prlimit(exporter.pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (kill, "has ended before the run"),
        (hang, "is still sending, and goes on by itself"),
        (fill_its_disk, "is still sending, and goes on by itself"),
    ],
)
def test_what_becomes_of_an_exporter_is_nothing_to_its_run(jobs, sft, harm, told):
    name = f"exported_{harm.__name__}"
    log = jobs.log(name)
    started = forks.start(run_with_short_wait, jobs.settings("sft", name, **EXPORTED), log=log)
    run = jobs.run_folder(name)
    forks.until(run.metrics, "the run begins")
    os.kill(started.pid, signal.SIGSTOP)  # on a busy machine it would end before its exporter has begun
    exporter = exporter_of(run, "tensorboard")
    harm(exporter)
    os.kill(started.pid, signal.SIGCONT)
    forks.until(lambda: run.is_over, "the run ends")
    over = time.monotonic()
    forks.finish(started, log)
    assert time.monotonic() - over < BOUND_S + 5.0  # also on a machine that is busy with something else
    assert run.status == "finished"
    assert figures(run) == figures(sft)
    assert told in log.read_text()
    if exporter.is_running():
        exporter.kill()
        exporter.wait(10)
    tail.follow(run, "tensorboard", until_over=False)
    steps, losses = run.series("train/loss")
    assert tensorboard_losses(run) == [(step, pytest.approx(loss)) for step, loss in zip(steps, losses)]


def test_a_server_that_never_answers_is_nothing_to_its_run(jobs, sft):
    if sentence := services.lacking("mlflow"):
        pytest.skip(sentence)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = jobs.settings(
            "sft",
            "exported_silent",
            exp_manager__create_mlflow_logger=True,
            exp_manager__mlflow_logger_kwargs__tracking_uri=f"'http://127.0.0.1:{silent.getsockname()[1]}'",
        )
        log = jobs.log("exported_silent")
        forks.run(run_with_short_wait, settings, log=log)
    run = jobs.run_folder("exported_silent")
    assert (run.status, figures(run)) == ("finished", figures(sft))
    assert "the exporter to MLflow" in log.read_text() and "is still sending" in log.read_text()
    exporter = exporter_of(run, "mlflow")
    assert exporter.nice() == 19
    exporter.kill()


def test_a_killed_run_s_exporter_ends_by_itself_and_the_next_one_goes_on(jobs, sft):
    log = jobs.log("exported_killed")
    settings = jobs.settings("sft", "exported_killed", **EXPORTED)
    started = forks.start(run_smoke_job, "sft", settings, log=log)
    run = jobs.run_folder("exported_killed")
    forks.until(lambda: run.latest_checkpoint() and len(run.metrics()) > 4, "steps are done")
    exporter = exporter_of(run, "tensorboard")
    os.kill(started.pid, signal.SIGKILL)
    started.join()
    psutil.wait_procs([exporter], timeout=30)
    assert not exporter.is_running()
    again = jobs.run("sft", "exported_killed", **EXPORTED)
    assert figures(again) == figures(sft)
    steps, losses = again.series("train/loss")
    assert tensorboard_losses(again) == [(step, pytest.approx(loss)) for step, loss in zip(steps, losses)]
