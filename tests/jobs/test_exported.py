"""Runs and their exporters: whatever becomes of an exporter, the run has the same figures and ends."""

import os
import signal
import subprocess

import forks
import psutil
import pytest
from smoke_jobs import assert_same_first_steps, first_steps

from aligner_lib.config.compose import compose
from aligner_lib.run_folder.exporters import process
from aligner_lib.run_folder.reader import RunFolder

assert compose("sft").exp_manager.create_tensorboard_logger, "on by default (docs/parity.md)"
STEPS = 8
SHORT = first_steps("sft", STEPS) | {"exp_manager__create_tensorboard_logger": True}


@pytest.mark.parametrize(
    ("number", "level", "words"),
    [
        (signal.SIGKILL, "WARNING", "has ended before the run"),
        (signal.SIGSTOP, "INFO", "is still sending, and goes on by itself"),
    ],
)
def test_a_killed_and_a_hanging_exporter_do_not_hold_up_their_run(
    tmp_path, monkeypatch, caplog, number, level, words
):
    """A process that sleeps stands in for the exporter."""
    sleeping = subprocess.Popen(["sleep", str(forks.BOUND_S)], stdin=subprocess.PIPE)
    monkeypatch.setattr(process, "END_SECONDS", 0.1)
    monkeypatch.setattr(process, "_start", lambda run, name: sleeping)
    monkeypatch.setattr(process.logger, "handlers", [caplog.handler])
    exporters = process.Exporters()
    exporters.start(tmp_path, ["tensorboard"])
    sleeping.send_signal(number)
    with caplog.at_level("INFO", process.logger.name):
        exporters.close()
    assert words in caplog.text and {record.levelname for record in caplog.records} == {level}
    sleeping.kill()
    sleeping.wait()


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


def test_a_killed_run_s_exporter_ends_by_itself_and_the_next_one_goes_on(jobs, sft):
    name = "exported_killed"
    run = jobs.run_folder(name)
    trainer = jobs.start("sft", name, **SHORT)
    forks.until(lambda: run.latest_checkpoint() and len(run.metrics()) > 4, "steps are done")
    os.kill(trainer.pid, signal.SIGSTOP)  # its end would be the exporter's
    exporter = exporter_of(run)
    assert exporter.nice() == 19
    trainer.kill()
    trainer.join()
    psutil.wait_procs([exporter], timeout=30)
    assert not exporter.is_running()
    again = jobs.run("sft", name, **SHORT)
    assert_same_first_steps(again, sft)
    assert_tensorboard_has_the_losses(again)
