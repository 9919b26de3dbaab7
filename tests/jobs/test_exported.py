"""Runs and their exporters: whatever becomes of an exporter, the run has the same figures and ends."""

import os
import signal

import forks
import psutil
import pytest
from smoke_jobs import figures, first_steps, run_smoke_job

from aligner_lib.config.compose import compose
from aligner_lib.run_folder.exporters import process, tail
from aligner_lib.run_folder.reader import RunFolder

assert compose("sft").exp_manager.create_tensorboard_logger, "on by default (docs/parity.md)"
STEPS = 8
SHORT = first_steps("sft", STEPS) | {"exp_manager__create_tensorboard_logger": True}


def run_with_short_wait(settings: list[str]) -> None:
    process.END_SECONDS = 0.5
    run_smoke_job("sft", settings)


def exporter_of(run: RunFolder) -> psutil.Process:
    """The exporter's process, once it has its lock."""
    lock = run.path / "exporters" / "tensorboard.lock"
    return psutil.Process(int(forks.until(lambda: lock.exists() and lock.read_text(), "the exporter begins")))


def assert_tensorboard_has_the_losses(run: RunFolder) -> None:
    """A busy machine's exporter may go on after its run has ended."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def exported():
        return EventAccumulator(str(run.path / "tensorboard")).Reload().Scalars("train/loss")

    steps, losses = run.series("train/loss")
    assert steps == list(range(1, STEPS + 1))
    forks.until(lambda: [event.step for event in exported()] == steps, "TensorBoard has every step once")
    assert [event.value for event in exported()] == pytest.approx(losses)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "has ended before the run"),
        (signal.SIGSTOP, "is still sending, and goes on by itself"),
    ],
)
def test_a_killed_and_a_hanging_exporter_are_nothing_to_their_run(jobs, sft, number, words):
    name = f"exported_{number.name}"
    run, log = jobs.run_folder(name), jobs.log(name)
    trainer = forks.start(run_with_short_wait, jobs.settings("sft", name, **SHORT), log=log)
    forks.until(run.metrics, "the run begins")
    os.kill(trainer.pid, signal.SIGSTOP)  # on a busy machine it would end before its exporter has begun
    exporter = exporter_of(run)
    assert exporter.nice() == 19
    exporter.send_signal(number)
    os.kill(trainer.pid, signal.SIGCONT)
    forks.finish(trainer, log)
    assert run.status == "finished"
    assert figures(run) == figures(sft)[: STEPS + 1]
    assert words in log.read_text()
    if exporter.is_running():
        exporter.kill()
        exporter.wait(10)
    tail.follow(run, "tensorboard", until_over=False)
    assert_tensorboard_has_the_losses(run)


def test_a_killed_run_s_exporter_ends_by_itself_and_the_next_one_goes_on(jobs, sft):
    name = "exported_killed"
    run = jobs.run_folder(name)
    trainer = jobs.start("sft", name, **SHORT)
    forks.until(lambda: run.latest_checkpoint() and len(run.metrics()) > 4, "steps are done")
    os.kill(trainer.pid, signal.SIGSTOP)  # its end would be the exporter's
    exporter = exporter_of(run)
    trainer.kill()
    trainer.join()
    psutil.wait_procs([exporter], timeout=30)
    assert not exporter.is_running()
    again = jobs.run("sft", name, **SHORT)
    assert figures(again) == figures(sft)[: STEPS + 1]
    assert_tensorboard_has_the_losses(again)
