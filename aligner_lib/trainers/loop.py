"""The training loop for all trainers: resume, step, validate, save, handle requests and end cleanly.

A trainer's state consists of its engines and the number of completed steps. Data order, sampling and schedules are functions of
the step number. A run that is killed and resumed therefore computes the same results bit for bit. The same holds for a trainer
that works with another job: when one of the two jobs dies, both load their newest common checkpoint and repeat the steps after
that checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aligner_lib.errors import FunctionError, Interruption, UnmatchedCheckpoint, UserError
from aligner_lib.megatron import cpu, parallel
from aligner_lib.models.tensor_store import check_store
from aligner_lib.run_folder.ranking import Ranking
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.processor_wait import ProcessorWait

SCHEDULER_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
Metrics = dict[str, float]


class TrainerProtocol(Protocol):
    """The interface of the trainers that a TrainingLoop runs."""

    controls: Mapping[str, float]  # values that a user can change during the run, as in the settings

    def change(self, name: str, value: float) -> None:
        """Set a control to another value, from the next step on."""

    def step(self, step: int) -> Metrics:
        """Run step number `step` and return its metrics. The first step is 1.

        `step`, `validate` and `save` raise Interruption if another job has died.
        """

    def validate(self, step: int) -> Metrics:
        """Compute metrics on held-out data after `step` steps."""

    def save(self, folder: Path) -> None:
        """Write this process's share of the state."""

    def load(self, folder: Path | None) -> None:
        """Load the state that `save` wrote. None, only after an Interruption: return to the state before the first step.

        Raises UnmatchedCheckpoint if another job lacks its part of the checkpoint.
        """


@dataclass(frozen=True)
class LoopSettings:
    """The run's length, the intervals between validations and checkpoints in steps, and the checkpoints to keep."""

    max_steps: int
    val_check_interval: int
    save_interval: int
    keep_checkpoints: int = 1
    save_checkpoints: bool = True
    resume: bool = True
    must_resume: bool = False
    stop_after: int | None = None
    save_best: Ranking | None = None


class BoundExceeded(UserError):
    """A trainer refuses to continue, before the current step has changed anything. The run fails, but with a checkpoint."""


class _Stopped(Exception):
    """A user or the scheduler has requested a stop."""


@dataclass
class TrainingLoop:
    """The state of a run: completed steps, the newest checkpoint, and changes of controls."""

    trainer: TrainerProtocol
    settings: LoopSettings
    run: RunWriter | None  # None on all ranks except the first
    done: int = 0  # steps
    saved: int = 0  # the step of the newest checkpoint
    changes: dict[str, float] = field(default_factory=dict)
    signalled: threading.Event = field(init=False, default_factory=threading.Event)
    """Is set once the scheduler has announced the job's end. `run_to_end` listens to the signals."""

    def run_to_end(self) -> str:
        """Train to max_steps or until a stop is requested. Return the run's status."""
        if self.run is not None:
            self.run.announce_controls(self.trainer.controls)
        with stop_signals() as self.signalled:
            self._resume()
            begun = self.done
            try:
                self._train()
            except _Stopped:
                where = f"; its checkpoint is of step {self.saved}" if self.settings.save_checkpoints else ""
                message = f"stopped after step {self.done} of {self.settings.max_steps}, as asked{where}"
                return self._finish("stopped", message)
            except BoundExceeded:
                if self.saved < self.done:
                    self._keep(self.changes)
                raise
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._interruption()) from None  # the run's message
        earlier = ", all of an earlier attempt: nothing was trained" if 0 < self.done == begun else ""
        return self._finish("finished", f"{self.done} steps{earlier}")

    # -- the stages -----------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Load the newest checkpoint of an earlier attempt, if there is a checkpoint."""
        there = self._checkpoints() if self.settings.resume else []
        if not there and self.settings.must_resume:
            raise FileNotFoundError(
                "there is no checkpoint to resume from: exp_manager.resume_ignore_no_checkpoint=True starts anew"
            )
        self._load_newest(there)

    def _train(self) -> None:
        """Run the remaining steps. When another job has died, also repeat the steps after the newest common checkpoint."""
        while True:
            try:
                if self.done == 0:
                    self._log(self._ranked(self._validate(0)))
                while self.done < self.settings.max_steps:
                    if self._is_stopped_by_settings():  # a resumed run may have done these steps already
                        raise _Stopped
                    self._step()
                    self._handle_requests()
                return
            except Interruption as interruption:
                self._announce(f"interrupted after step {self.done}: {interruption}")
                if parallel.from_first_rank(self._is_asked_to_stop()):
                    raise _Stopped from None
                self._load_newest(self._checkpoints() or [None])
                self._announce(f"going on after step {self.done}")

    def _load_newest(self, there: list[Path | None]) -> None:
        """Load the newest usable checkpoint from `there`, with its changes of controls. None: the state before the first
        step."""
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
            state = {"step": 0, "changes": {}}
            if newest is not None:
                state = json.loads((newest / "trainer.json").read_text())
            self.done = self.saved = state["step"]
            self.changes = {}  # later changes do not apply to earlier steps
            self._change(self._changes_that_hold(state))
            if self.run is not None:
                self.run.rewind(self.done)
            return

    def _step(self) -> None:
        """Run the next step, and its validation if a validation is due."""
        started, processor = time.perf_counter(), ProcessorWait()
        cpu.peak_memory()  # leave out what the last validation and checkpoint took
        with _at(self.done + 1):
            metrics = self._as_metrics(self.trainer.step(self.done + 1), "step")
        self.done += 1
        metrics["timers/step_time"] = time.perf_counter() - started
        if (waited := processor.seconds()) is not None:
            metrics["timers/processor_wait"] = waited
        if (peak := cpu.peak_memory()) is not None:
            metrics["memory/peak"] = peak
        try:
            if self._is_validated():
                metrics |= self._validate(self.done)
        finally:
            self._log(metrics)  # the step is complete even if its validation fails

    def _handle_requests(self) -> None:
        """Save a checkpoint when due, and handle the requests from control/ and from the scheduler."""
        requests = parallel.from_first_rank(
            self.run.requests(self.trainer.controls, self.settings.save_checkpoints, self.changes)
            if self.run is not None
            else None
        )
        stop_requested = requests.stop or self.signalled.is_set() or self._is_stopped_by_settings()
        stop = parallel.from_first_rank(stop_requested)
        best = parallel.from_first_rank(self._best_step() if self._is_validated() else None)
        # A change is saved at once, because its request is removed: a resumed run would otherwise continue without the change.
        due = requests.checkpoint or requests.changes or self.done % self.settings.save_interval == 0
        if self._is_last() or stop or due or best == self.done:
            self._keep(self.changes | requests.changes, before=self.changes if requests.changes else None)
        # only after saving, so that earlier steps are never repeated with the new values
        self._change(requests.changes)
        if self.run is not None:
            self.run.acknowledge()
        if stop and not self._is_last():
            raise _Stopped

    def _validate(self, step: int) -> Metrics:
        started = time.perf_counter()
        with _at(step):
            metrics = self._as_metrics(self.trainer.validate(step), "validate")
        return metrics | {"timers/validation_time": time.perf_counter() - started}

    def _keep(self, changes: dict[str, float], before: dict[str, float] | None = None) -> None:
        """Save a checkpoint of the current step. The checkpoint is complete when every job has saved its part.

        changes: the controls' values from this step on. before: their values until this step, if a change takes effect here.
        """
        if not self.settings.save_checkpoints:
            return
        run = self.run
        tmp_dir = parallel.from_first_rank(run.checkpoint_tmp_dir(self.done) if run is not None else None)
        self.trainer.save(tmp_dir)
        parallel.barrier()
        if run is not None:
            state = {"step": self.done, "changes": changes, "settings": self._controls()}
            state |= {} if before is None else {"before": before}
            (tmp_dir / "trainer.json").write_text(json.dumps(state))
            keep, needed = self.settings.keep_checkpoints, {self._best_step()}
            run.accept_checkpoint(tmp_dir, self.done, keep, check=check_checkpoint, needed=needed)
        parallel.barrier()
        self.saved = self.done

    # -- small things ---------------------------------------------------------------------------------------------

    def _is_last(self) -> bool:
        return self.done == self.settings.max_steps

    def _is_stopped_by_settings(self) -> bool:
        limit = self.settings.stop_after
        return limit is not None and self.done >= limit

    def _is_validated(self) -> bool:
        return self._is_last() or self.done % self.settings.val_check_interval == 0

    def _best_step(self) -> int | None:
        """The step of the best validation so far. None if checkpoints are not ranked, and on all ranks except the first."""
        ranking = self.settings.save_best
        return ranking.best_step(self.run.folder.metrics()) if ranking and self.run is not None else None

    def _ranked(self, metrics: Metrics) -> Metrics:
        """Return the first validation's metrics. Raises UserError if they lack the metric that ranks checkpoints."""
        if self.settings.save_best:
            self.settings.save_best.check(metrics)
        return metrics

    def _checkpoints(self) -> list[Path]:
        return parallel.from_first_rank(self.run.folder.checkpoints() if self.run is not None else None)

    def _is_asked_to_stop(self) -> bool:
        return self.signalled.is_set() or (self.run is not None and self.run.stop_requested)

    def _changes_that_hold(self, state: dict) -> dict[str, float]:
        """The checkpoint's changes of this trainer's controls, except those whose settings have other values now."""
        now = self._controls()
        changes = {name: value for name, value in state["changes"].items() if name in now}
        before = state.get("settings", now)
        holding = {name: value for name, value in changes.items() if before.get(name) == now[name]}
        for name in changes.keys() - holding:
            self._announce(
                f"the settings have changed {name} to {now[name]}, so its change to {changes[name]:g} "
                "during the earlier attempt no longer holds"
            )
        return holding

    def _controls(self) -> dict[str, float | None]:
        """The trainer's controls. A trainer may also give the names alone."""
        controls = self.trainer.controls
        return dict(controls) if isinstance(controls, Mapping) else dict.fromkeys(controls)

    def _change(self, changes: dict[str, float]) -> None:
        for name, value in changes.items():
            self.trainer.change(name, value)
        self.changes |= changes

    def _as_metrics(self, metrics: Metrics, method: str) -> Metrics:
        """Return the metrics of a trainer's method. Raises TypeError if the method returned something else."""
        if not isinstance(metrics, dict):
            raise TypeError(
                f"{type(self.trainer).__name__}.{method} returned {metrics!r}: return a dict of metrics, or {{}}"
            )
        return metrics

    def _log(self, metrics: Metrics) -> None:
        if self.run is not None:
            self.run.log(self.done, metrics)

    def _interruption(self) -> str:
        """The steps of a run that the user interrupts, and how they go on."""
        goes_on = self.saved > 0 and self.settings.resume
        begins = f"goes on after step {self.saved}" if goes_on else "begins anew"
        cure = " (`aligner stop RUN` saves a checkpoint first)" if self.settings.save_checkpoints else ""
        return f"interrupted after step {self.done}: the same command {begins}{cure}"

    def _announce(self, line: str) -> None:
        if self.run is not None:
            self.run.announce(line)

    def _finish(self, status: str, message: str) -> str:
        if self.run is not None:
            self.run.finish(status, message)
        return status


def as_built(trainer: TrainerProtocol) -> TrainerProtocol:
    """Return the trainer unchanged, before its first step. A replacement for this function may modify and return the
    trainer."""
    return trainer


@contextmanager
def _at(step: int) -> Iterator[None]:
    """Add the step number to the error of a user's function."""
    try:
        yield
    except FunctionError as error:
        raise FunctionError(f"at step {step}, {error}") from error


def check_checkpoint(folder: Path) -> None:
    """Raise ValueError for a checkpoint with a damaged store."""
    for store in {path.parent for path in folder.rglob("*.safetensors")}:
        check_store(store)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Treat SIGTERM and SIGUSR2 (a scheduler's warnings) as stop requests, like the control file."""
    stop_requested = threading.Event()
    with _handled_by(lambda *_: stop_requested.set()):
        yield stop_requested


@contextmanager
def interrupting_signals(activity: str) -> Iterator[None]:
    """Treat SIGTERM and SIGUSR2 like Ctrl-C, while there is no step whose end could be waited for.

    activity: as in the run's message, "stopped while …". After the first signal, the next ones are ignored until the context
    ends. With several ranks, SIGTERM keeps its action: the process ends, and its run is `lost`.
    """
    # When a rank fails, its launcher sends SIGTERM to the others. The job has then failed, and must not count as stopped.
    has_other_ranks = int(os.environ.get("WORLD_SIZE", 1)) > 1
    numbers = (signal.SIGUSR2,) if has_other_ranks else SCHEDULER_SIGNALS

    def interrupt(number: int, _) -> None:
        # A scheduler sends SIGTERM twice. The second signal must not interrupt the record of the first.
        for handled in numbers:
            signal.signal(handled, signal.SIG_IGN)
        raise KeyboardInterrupt(f"stopped while {activity} ({signal.Signals(number).name})")

    with _handled_by(interrupt, numbers):
        yield


@contextmanager
def _handled_by(handler: Callable, numbers: tuple[int, ...] = SCHEDULER_SIGNALS) -> Iterator[None]:
    """Let a function handle a scheduler's signals. Only the main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
