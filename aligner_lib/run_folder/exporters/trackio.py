"""trackio: its database on this machine, or a server that its variables name (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL)."""

from __future__ import annotations

import os
import time

import trackio

from aligner_lib.run_folder.exporters.base import TABLES, LoggedStep, RunRecord, Service, as_columns

PROJECT = "aligner-lab"
WRITTEN_SECONDS = 30.0  # trackio writes twice a second


class Trackio(Service):
    """Metrics and tables. trackio identifies a run by its name, so the name contains the attempt's id."""

    def __init__(self):
        self._run = None

    def open(self, run: RunRecord, noted: list[int]) -> int:
        """Start or resume. If the local database lacks a step, for example after a full disk, the run is removed and sent
        again."""
        self._project = run.options.get("project") or PROJECT
        self._name = f"{run.options.get('name') or run.name}-{run.id}"
        elsewhere = os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")
        # on a network file system trackio writes other files, and reads the files into the database later
        self._is_local = not elsewhere and trackio.utils.get_storage_mode() == "sqlite"
        last = noted[-1] if noted else -1
        if self._is_local:
            last = trackio.SQLiteStorage.get_max_step_for_run(self._project, self._name)
            last = -1 if last is None else last
            if self._count() != sum(step <= last for step in noted):
                self._delete()
                last = -1
        self._run = trackio.init(
            self._project,
            self._name,
            config=run.config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._expected = self._count()
        return last

    def send(self, step: LoggedStep) -> None:
        """Log a row with the metrics and tables."""
        tables = {
            TABLES.get(split, split): trackio.Table(*as_columns(rows))
            for split, rows in step.rollouts.items()
        }
        self._run.log(step.metrics | tables, step=step.step)
        self._expected += 1

    def flush(self) -> None:
        """Wait for trackio's thread, which reports a failure only as a warning. Raises OSError if rows are missing."""
        bound = time.monotonic() + WRITTEN_SECONDS
        while self._is_local and self._count() < self._expected:
            if time.monotonic() > bound:
                raise OSError(f"trackio has {self._count()} of {self._expected} steps; is its disk full?")
            time.sleep(0.05)

    def close(self, status: str) -> None:
        """Write the remaining rows. A superseded run is removed."""
        if self._run is not None:
            self._run.finish()
            if status == "superseded" and self._is_local:
                self._delete()

    def _count(self) -> int:
        return trackio.SQLiteStorage.get_log_count(self._project, self._name) if self._is_local else 0

    def _delete(self) -> None:
        for run in trackio.Api().runs(self._project):
            if run.name == self._name:
                run.delete()
