"""The loop around every trainer: resume, step, validate, save, obey, end cleanly.

A trainer's state is its engines and the number of steps done. Data order, sampling and schedules are functions of that
number, so a run that was killed goes on to the same figures, to the bit.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aligner_lib.errors import Interruption, UnmatchedCheckpoint
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

    def asked_to_stop() -> bool:
        return signalled.is_set() or (run is not None and run.stop_requested)

    def undisturbed(work: Callable[[int], Metrics], step: int) -> Metrics:
        """The work's figures. When it is interrupted, what was done is saved, and the work is done again."""
        nonlocal saved
        while True:
            try:
                return work(step)
            except Interruption as interruption:
                if saved != done:
                    saved = _save(trainer, settings, run, done, changes)
                kept = f", and its checkpoint is of step {saved}" if saved else ""
                _say(run, f"interrupted after step {done}{kept}: {interruption}")
                if not interruption.overcome(asked_to_stop):
                    raise _Stopped from None
                _say(run, f"going on after step {done}")

    with stop_signals() as signalled:
        try:
            if done == 0:
                _log(run, 0, undisturbed(lambda step: _timed_validation(trainer, step), 0))
            while done < settings.max_steps:
                started = time.perf_counter()
                metrics = undisturbed(trainer.step, done + 1)
                done += 1
                metrics["timers/step_time"] = time.perf_counter() - started
                last = done == settings.max_steps
                try:
                    if last or done % settings.val_check_interval == 0:
                        metrics |= undisturbed(lambda step: _timed_validation(trainer, step), done)
                finally:
                    _log(run, done, metrics)  # the step is done, also where its validation is not
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
                    run.acknowledge()
                if stop and not last:
                    raise _Stopped
        except _Stopped:
            where = f"; its checkpoint is of step {saved}" if settings.save_checkpoints else ""
            return _finish(
                run, "stopped", f"stopped after step {done} of {settings.max_steps}, as asked{where}"
            )
    return _finish(run, "finished", f"{done} steps")


class _Stopped(Exception):
    """Somebody asked for the end."""


def _resume(trainer: Trainer, settings: LoopSettings, run: RunWriter | None) -> tuple[int, dict]:
    """Load the newest checkpoint that can be loaded; returns the steps done and the changes that were asked for in them."""
    there = run.folder.checkpoints() if run is not None and settings.resume else []
    there = parallel.from_first_rank(there)
    if not there and settings.must_resume:
        raise FileNotFoundError(
            "there is no checkpoint to resume from: exp_manager.resume_ignore_no_checkpoint=True starts anew"
        )
    for newest in reversed(there):
        try:
            trainer.load(newest)
        except UnmatchedCheckpoint as error:
            if newest == there[0]:
                raise
            _say(run, f"{newest.name} can't be gone on from ({error}): back to an earlier checkpoint")
            continue
        state = json.loads((newest / "trainer.json").read_text())
        if run is not None and newest != there[-1]:
            run.rewind(state["step"])
        for name, value in state["changes"].items():
            trainer.change(name, value)
        return state["step"], state["changes"]
    return 0, {}


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


def _say(run: RunWriter | None, line: str) -> None:
    if run is not None:
        print(line, file=sys.stderr, flush=True)
        run.note(line)


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
