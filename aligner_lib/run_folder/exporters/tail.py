"""Follows a run folder and sends each step to a service, once and in order.

Each step is noted before it is sent (notes.py). An exporter that continues later compares the notes with metrics.jsonl. If the
run repeated steps with the same metrics, the steps are not sent again. If the metrics differ, the service has to remove the
steps.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.exporters.base import LoggedStep, RunRecord
from aligner_lib.run_folder.exporters.notes import Notes, Sent
from aligner_lib.run_folder.exporters.services import known, make, options
from aligner_lib.run_folder.reader import RunFolder

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
CALL_SECONDS = 600.0  # a longer call to a service counts as a hang
LONGEST_PAUSE_SECONDS = 30.0  # between two attempts to reach a failing service
FAILURES = 4  # in a row, before the exporter of a finished run gives up
CHUNK_BYTES = 1 << 20


def follow(
    run: RunFolder,
    name: str,
    *,
    until_over: bool,
    wait_for_lock: bool = False,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """Send a run to a service. Return the last step that the service now has, −1 for a run without steps.

    until_over: continue until the run has ended; otherwise send the existing steps once. pause: waits up to the given number of
    seconds. Raises UserError for problems that the user can solve: another exporter is already running, the package is missing,
    or the service can't be reached and the run is over.
    """
    if not run.info:
        raise UserError(
            f"{run.path} has no run.json: the folder is not a run folder, or its run has not begun yet"
        )
    make(name)  # raises an error for a missing package before anything is written
    with _alone(run.path / "exporters" / f"{name}.lock", known(name).title, wait_for_lock):
        failures, furthest = 0, -1
        while True:
            with closing(Tail(run, name)) as tail:
                try:
                    return tail.go(until_over, pause)
                except Superseded as reason:
                    logger.info("%s", reason)
                    continue
                except Exception as error:
                    # a service may get the last steps, or all, again from each Tail: that is no progress
                    failures = 1 if tail.last > furthest else failures + 1
                    furthest = max(furthest, tail.last)
                    is_first = failures == 1  # a service that can't be reached fails for hours
                    title, reason = known(name).title, type(error).__name__
                    logger.warning("%s: %s: %s", title, reason, error, exc_info=is_first)
                    if not until_over or (run.status != "running" and failures >= FAILURES):
                        raise UserError(
                            f"sending to {known(name).title} fails ({error}): after the cause is repaired, `aligner "
                            f"log {run.path} --to {name}` sends the rest"
                        ) from error
            pause(min(2.0**failures, LONGEST_PAUSE_SECONDS))


class Superseded(Exception):
    """The run has gone back, and the service can't remove the later steps; or a resume has changed the run's settings."""


class Tail:
    """The progress of a service in a run. After a failure the Tail is unusable, and a new Tail continues from the notes."""

    def __init__(self, run: RunFolder, name: str):
        self._title, self._service = known(name).title, make(name)
        self._notes = Notes(run.path / "exporters" / f"{name}.jsonl")
        self._run, self._name = run, name
        self._metrics, self._rollouts = run.metrics_reader(), run.rollouts_reader()
        self._restarts = self._rollouts_restarts = 0
        self._rows: list[dict] = []  # rollouts of later steps
        self._config: dict = {}
        self._at = 0  # records of metrics.jsonl already compared with the notes
        self._is_open = False
        self.last = -1  # the last step that this Tail has sent

    def go(self, until_over: bool, pause: Callable[[float], object]) -> int:
        """Send the existing steps, or all steps until the run is over. Return the last step."""
        self.open()
        while True:
            # read the status before the last records, so that no record is missed
            over = not until_over or self._run.status != "running"
            self.catch_up()
            if over:
                return self.finish()
            pause(POLL_SECONDS)

    def open(self) -> None:
        """Open the service, and shorten the notes to the steps that the service has."""
        self._notes.open()
        path, self._config = self._run.path.absolute(), self._run.info.get("config") or {}
        record = RunRecord(
            path=path,
            name=path.name,
            config=self._config,
            options=options(self._config, self._name),
            attempt=self._notes.attempt,
            id=self._notes.id,
        )
        self._is_open = True
        with _bounded(f"opening {self._title}"):
            last = self._service.open(record, [sent.step for sent in self._notes.sent])
        self._notes.keep(sum(sent.step <= last for sent in self._notes.sent))

    def catch_up(self) -> None:
        """Send all new steps. Raises Superseded, and the errors of the service."""
        while records := self._metrics.poll(CHUNK_BYTES):
            # a resume writes its settings before its first step
            if (self._run.info.get("config") or {}) != self._config:
                raise Superseded("the run has other settings since its resume: the service is opened anew")
            # the file was truncated, and its records start again from the first
            if self._metrics.restarts != self._restarts:
                self._restarts, self._at = self._metrics.restarts, 0
            for record in records:
                if isinstance(record.get("step"), int):
                    self._pass_on(record)
            with _bounded(f"sending to {self._title}"):
                self._service.flush()

    def finish(self) -> int:
        """End the run in the service. Return the last step. Raises Superseded if a finished run has fewer steps than
        earlier."""
        status = self._run.status
        if status == "finished":
            self._take_back_beyond(self._at)
        self._end(status)
        return self._notes.sent[-1].step if self._notes.sent else -1

    def close(self) -> None:
        """Close everything in any state."""
        with suppress(Exception):
            self._end("running")
        with suppress(OSError):
            self._notes.close()

    def _end(self, status: str) -> None:
        if self._is_open:
            self._is_open = False
            with _bounded(f"closing {self._title}"):
                self._service.close(status)

    def _pass_on(self, record: dict) -> None:
        """Send a record, unless the record was sent before."""
        sent = Sent.of(record)
        if self._notes.sent[self._at : self._at + 1] not in ([], [sent]):
            self._take_back_beyond(self._at)
        self._at += 1
        if self._at <= len(self._notes.sent):
            return
        metrics = {name: value for name, value in record.items() if name not in ("step", "time")}
        step = LoggedStep(
            step=sent.step,
            time=record.get("time", 0.0),
            metrics={name: value for name, value in metrics.items() if type(value) in (int, float)},
            rollouts=self._rollouts_of(sent.step),
        )
        self._notes.append(sent)
        with _bounded(f"sending to {self._title}"):
            self._service.send(step)
        self.last = sent.step

    def _take_back_beyond(self, at: int) -> None:
        """Let the service remove all steps except the first `at`."""
        if at >= len(self._notes.sent):
            return
        last = self._notes.sent[at - 1].step if at else -1
        if not self._service.take_back(last):
            self._end("superseded")
            self._notes.begin_anew()
            raise Superseded(
                f"the run has gone back to step {max(last, 0)}, and {self._title} can't remove later steps: "
                "everything is sent again"
            )
        logger.info("the run has gone back to step %d", max(last, 0))
        self._notes.keep(at)

    def _rollouts_of(self, step: int) -> dict[str, list[dict]]:
        """The first rows of a step, by split. A step's rows are written before its metrics."""
        self._read_rollouts(0)  # notices a truncated file
        while not self._rows or self._rows[-1]["step"] <= step:
            self._rows = [row for row in self._rows if row["step"] == step]
            if not self._read_rollouts(CHUNK_BYTES):
                break
        by_split: dict[str, list[dict]] = {}
        for row in self._rows:
            if row["step"] == step:
                by_split.setdefault(row.get("split", "train"), []).append(row)
        self._rows = [row for row in self._rows if row["step"] > step]
        return {split: rows[: self._service.rows] for split, rows in by_split.items()}

    def _read_rollouts(self, max_bytes: int) -> bool:
        """Read more rows. Return whether there were any."""
        rows = self._rollouts.poll(max_bytes)
        if self._rollouts.restarts != self._rollouts_restarts:
            self._rollouts_restarts, self._rows = self._rollouts.restarts, []
        self._rows += [row for row in rows if isinstance(row.get("step"), int)]
        return bool(rows)


@contextmanager
def _alone(path: Path, title: str, wait: bool) -> Iterator[None]:
    """Lock a run's exporter to a service, so that only a single process sends. The system releases the lock when the process
    ends."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"process {file.read() or '?'} is already sending {path.parent.parent} to {title}, and continues until the run "
                "has ended"
            ) from None
        except OSError:
            pass  # a file system without locks
        with suppress(OSError):  # on a full disk
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


@contextmanager
def _bounded(action: str) -> Iterator[None]:
    """End this process if the block takes too long: a library that hangs can't be stopped in any other way."""
    timer = threading.Timer(CALL_SECONDS, _give_up, [action])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(action: str) -> None:
    logger.error("%s takes more than %g s: given up; `aligner log` continues from here", action, CALL_SECONDS)
    os._exit(1)
