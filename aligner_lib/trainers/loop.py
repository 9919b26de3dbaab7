"""The loop around every trainer: resume, step, validate, save, obey, end cleanly.

A trainer's state is its engines and the number of steps done. Data order, sampling and schedules are functions of that
number, so a run that was killed goes on to the same figures, to the bit.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aligner_lib.megatron import parallel
from aligner_lib.run_writer import RunWriter
from aligner_lib.store import check_store

Metrics = dict[str, float]


class Trainer(Protocol):
    controls: tuple[str, ...]  # what can be changed while it runs

    def change(self, name: str, value: float) -> None:
        """Go on with another value from the next step on."""

    def step(self, step: int) -> Metrics:
        """Do step number `step` (the first is 1)."""

    def validate(self, step: int) -> Metrics:
        """Figures on held-out data after this many steps."""

    def save(self, folder: Path) -> None:
        """Write this process's share of the state."""

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""


@dataclass(frozen=True)
class LoopSettings:
    max_steps: int
    val_check_interval: int
    save_interval: int
    keep_checkpoints: int = 1
    save_checkpoints: bool = True
    resume: bool = True
    must_resume: bool = False


def run_loop(trainer: Trainer, settings: LoopSettings, run: RunWriter | None) -> str:
    """Train to max_steps or until asked to stop; returns the run's status. `run` is None on all ranks but the first."""
    if run is not None:
        run.announce_controls(trainer.controls)
    done, changes = _resume(trainer, settings, run)
    saved = done
    with stop_signals() as signalled:
        if done == 0:
            _log(run, 0, _timed_validation(trainer, 0))
        while done < settings.max_steps:
            started = time.perf_counter()
            metrics = trainer.step(done + 1)
            done += 1
            metrics["timers/step_time"] = time.perf_counter() - started
            last = done == settings.max_steps
            if last or done % settings.val_check_interval == 0:
                metrics |= _timed_validation(trainer, done)
            _log(run, done, metrics)
            asked = parallel.from_first_rank(run.requests(trainer.controls) if run is not None else None)
            stop = parallel.from_first_rank(asked.stop or signalled.is_set())
            for name, value in asked.changes.items():
                trainer.change(name, value)
            changes |= asked.changes
            # a change is saved at once: its request is removed, so a run that died would go on without it
            due = asked.checkpoint or asked.changes or done % settings.save_interval == 0
            if last or stop or due:
                saved = _save(trainer, settings, run, done, changes)
            if run is not None:
                run.acknowledge(asked)
            if stop and not last:
                where = f"; its checkpoint is of step {saved}" if settings.save_checkpoints else ""
                return _finish(
                    run, "stopped", f"stopped after step {done} of {settings.max_steps}, as asked{where}"
                )
    return _finish(run, "finished", f"{done} steps")


def _resume(trainer: Trainer, settings: LoopSettings, run: RunWriter | None) -> tuple[int, dict]:
    """Load the latest checkpoint; returns the steps done and the changes that were asked for in them."""
    latest = run.folder.latest_checkpoint() if run is not None and settings.resume else None
    latest = parallel.from_first_rank(latest)
    if latest is None and settings.must_resume:
        raise FileNotFoundError(
            "there is no checkpoint to resume from: exp_manager.resume_ignore_no_checkpoint=True starts anew"
        )
    if latest is None:
        return 0, {}
    trainer.load(latest)
    state = json.loads((latest / "trainer.json").read_text())
    for name, value in state["changes"].items():
        trainer.change(name, value)
    return state["step"], state["changes"]


def _save(trainer: Trainer, settings: LoopSettings, run: RunWriter | None, step: int, changes: dict) -> int:
    if not settings.save_checkpoints:
        return 0
    aside = parallel.from_first_rank(run.checkpoint_aside(step) if run is not None else None)
    trainer.save(aside)
    parallel.barrier()
    if run is not None:
        (aside / "trainer.json").write_text(json.dumps({"step": step, "changes": changes}))
        run.accept_checkpoint(aside, step, settings.keep_checkpoints, check=check_checkpoint)
    parallel.barrier()
    return step


def check_checkpoint(folder: Path) -> None:
    for store in {path.parent for path in folder.rglob("*.safetensors")}:
        check_store(store)


def _timed_validation(trainer: Trainer, step: int) -> Metrics:
    started = time.perf_counter()
    metrics = trainer.validate(step)
    return metrics | {"timers/validation_time": time.perf_counter() - started}


def _log(run: RunWriter | None, step: int, metrics: Metrics) -> None:
    if run is not None:
        run.log(step, metrics)


def _finish(run: RunWriter | None, status: str, message: str) -> str:
    if run is not None:
        run.finish(status, message)
    return status


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGUSR2 (a scheduler's warnings) ask for a stop as the control file does."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {
        number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGUSR2)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
