"""The loop around every trainer: resume, step, validate, save, follow requests, end cleanly.

A trainer's state is its engines and the number of steps done. Data order, sampling and schedules are functions of that
number, so a run that was killed goes on to the same figures, to the bit.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aligner_lib.errors import Interruption, UnmatchedCheckpoint
from aligner_lib.megatron import parallel
from aligner_lib.models.tensor_store import check_store
from aligner_lib.run_folder.writer import RunWriter

Metrics = dict[str, float]


class Trainer(Protocol):
    """What `run_loop` runs."""

    controls: tuple[str, ...]  # what can be changed while it runs

    def change(self, name: str, value: float) -> None:
        """Go on with another value from the next step on."""

    def step(self, step: int) -> Metrics:
        """Do step number `step` (the first is 1)."""

    def validate(self, step: int) -> Metrics:
        """Figures on held-out data after this many steps."""

    def save(self, folder: Path) -> None:
        """Write this process's share of the state. Raises Interruption, when it is written, where another job's is not."""

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""


@dataclass(frozen=True)
class LoopSettings:
    """How long, how often, and what is kept. Intervals are in steps."""

    max_steps: int
    val_check_interval: int
    save_interval: int
    keep_checkpoints: int = 1
    save_checkpoints: bool = True
    resume: bool = True
    must_resume: bool = False


def run_loop(trainer: Trainer, settings: LoopSettings, run: RunWriter | None) -> str:
    """Train to max_steps or until asked to stop; returns the run's status. `run` is None on all ranks but the first."""
    return _Loop(trainer, settings, run).go()


class _Stopped(Exception):
    """Somebody asked for the end."""


@dataclass
class _Loop:
    """A run on its way: what is done, what of it is saved, and what was asked for meanwhile."""

    trainer: Trainer
    settings: LoopSettings
    run: RunWriter | None
    done: int = 0  # steps
    saved: int = 0  # the step of the newest checkpoint
    changes: dict[str, float] = field(default_factory=dict)
    unsaved_changes: bool = False

    def go(self) -> str:
        if self.run is not None:
            self.run.announce_controls(self.trainer.controls)
        self._resume()
        with stop_signals() as self.signalled:
            try:
                if self.done == 0:
                    self._log(self._undisturbed(self._validate, 0))
                while self.done < self.settings.max_steps:
                    self._step()
                    self._obey()
            except _Stopped:
                where = f"; its checkpoint is of step {self.saved}" if self.settings.save_checkpoints else ""
                message = f"stopped after step {self.done} of {self.settings.max_steps}, as asked{where}"
                return self._finish("stopped", message)
        return self._finish("finished", f"{self.done} steps")

    # -- the stages -----------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Load the newest checkpoint that can be loaded, and make the changes that were asked for before it."""
        there = self.run.folder.checkpoints() if self.run is not None and self.settings.resume else []
        there = parallel.from_first_rank(there)
        if not there and self.settings.must_resume:
            raise FileNotFoundError(
                "there is no checkpoint to resume from: exp_manager.resume_ignore_no_checkpoint=True starts anew"
            )
        for newest in reversed(there):
            try:
                self.trainer.load(newest)
            except UnmatchedCheckpoint as error:
                if newest == there[0]:
                    raise
                self._announce(
                    f"{newest.name} can't be gone on from ({error}): back to an earlier checkpoint"
                )
                continue
            state = json.loads((newest / "trainer.json").read_text())
            self.done = self.saved = state["step"]
            self._change(state["changes"])
            if self.run is not None and newest != there[-1]:
                self.run.rewind(self.done)
            return

    def _step(self) -> None:
        """One step, and the validation that is due after it."""
        started = time.perf_counter()
        metrics = self._undisturbed(self.trainer.step, self.done + 1)
        self.done += 1
        metrics["timers/step_time"] = time.perf_counter() - started
        try:
            if self._is_last() or self.done % self.settings.val_check_interval == 0:
                metrics |= self._undisturbed(self._validate, self.done)
        finally:
            self._log(metrics)  # the step is done, also where its validation is not

    def _obey(self) -> None:
        """Save where it is due, and do what control/ and the scheduler ask for."""
        asked = parallel.from_first_rank(
            self.run.requests(self.trainer.controls) if self.run is not None else None
        )
        stop = parallel.from_first_rank(asked.stop or self.signalled.is_set())
        self._change(asked.changes)
        self.unsaved_changes = bool(asked.changes)
        # a change is saved at once: its request is removed, so a run that died would go on without it
        due = asked.checkpoint or asked.changes or self.done % self.settings.save_interval == 0
        if self._is_last() or stop or due:
            self._undisturbed(self._keep, self.done)
        if self.run is not None:
            self.run.acknowledge()
        if stop and not self._is_last():
            raise _Stopped

    def _undisturbed(self, work: Callable[[int], Metrics | None], step: int) -> Metrics | None:
        """The work's figures. When it is interrupted, what was done is saved, and the work is done again."""
        while True:
            try:
                return work(step)
            except Interruption as interruption:
                with suppress(Interruption):  # it is known
                    self._keep(self.done)
                kept = f", and its checkpoint is of step {self.saved}" if self.saved else ""
                self._announce(f"interrupted after step {self.done}{kept}: {interruption}")
                if not interruption.overcome(self._is_asked_to_stop):
                    raise _Stopped from None
                self._announce(f"going on after step {self.done}")

    def _validate(self, step: int) -> Metrics:
        started = time.perf_counter()
        metrics = self.trainer.validate(step)
        return metrics | {"timers/validation_time": time.perf_counter() - started}

    def _keep(self, step: int) -> None:
        """A checkpoint of this step, unless there is one. One that another job's part is missing from is whole, too."""
        if not self.settings.save_checkpoints or (self.saved == step and not self.unsaved_changes):
            return
        run, missing = self.run, None
        tmp_dir = parallel.from_first_rank(run.checkpoint_tmp_dir(step) if run is not None else None)
        try:
            self.trainer.save(tmp_dir)
        except Interruption as interruption:
            missing = interruption
        parallel.barrier()
        if run is not None:
            (tmp_dir / "trainer.json").write_text(json.dumps({"step": step, "changes": self.changes}))
            run.accept_checkpoint(tmp_dir, step, self.settings.keep_checkpoints, check=check_checkpoint)
            run.acknowledge()  # the changes are in it
        parallel.barrier()
        self.saved, self.unsaved_changes = step, False
        if missing is not None:
            raise missing

    # -- small things ---------------------------------------------------------------------------------------------

    def _is_last(self) -> bool:
        return self.done == self.settings.max_steps

    def _is_asked_to_stop(self) -> bool:
        return self.signalled.is_set() or (self.run is not None and self.run.stop_requested)

    def _change(self, changes: dict[str, float]) -> None:
        for name, value in changes.items():
            self.trainer.change(name, value)
        self.changes |= changes

    def _log(self, metrics: Metrics) -> None:
        if self.run is not None:
            self.run.log(self.done, metrics)

    def _announce(self, line: str) -> None:
        if self.run is not None:
            self.run.announce(line)

    def _finish(self, status: str, message: str) -> str:
        if self.run is not None:
            self.run.finish(status, message)
        return status


def check_checkpoint(folder: Path) -> None:
    """Raises ValueError for a checkpoint with a damaged store."""
    for store in {path.parent for path in folder.rglob("*.safetensors")}:
        check_store(store)


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
