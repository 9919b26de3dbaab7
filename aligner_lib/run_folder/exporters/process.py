"""The exporters that a run starts: detached processes, which share only the run folder with the run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from aligner_lib.run_folder.exporters.services import known, lacking
from cluster.processes import JOB_VARIABLE

logger = logging.getLogger(__name__)

END_SECONDS = 10.0  # time that a run waits for all of its exporters at its end


class Exporters:
    """A run's exporters. Their failures never reach the run. Call `close` after the run has recorded its final status."""

    def __init__(self):
        self._processes: dict[str, subprocess.Popen] = {}
        self._run = Path()

    def start(self, run: Path, names: Iterable[str]) -> None:
        """Start an exporter for each service. If an exporter can't be started, a message is logged, and the run continues."""
        self._run = run.absolute()
        for name in names:
            if sentence := lacking(name):
                logger.warning(
                    "%s: nothing is sent; `aligner log %s --to %s` does so later", sentence, run, name
                )
                continue
            try:
                self._processes[name] = _start(self._run, name)
            except OSError as error:
                logger.warning("the exporter to %s can't be started: %s", known(name).title, error)

    def close(self) -> None:
        """Let the exporters send the remaining steps, and wait at most END_SECONDS. Slower exporters continue by themselves."""
        for process in self._processes.values():
            with suppress(OSError):  # the exporter no longer exists
                process.stdin.write(b"the run has ended\n")  # wakes the exporter
                process.stdin.close()
        until = time.monotonic() + END_SECONDS
        for name, process in self._processes.items():
            title, log = known(name).title, _log(self._run, name)
            try:
                if process.wait(max(0.0, until - time.monotonic())):
                    logger.warning(
                        "the exporter to %s has ended before the run (%s); `aligner log %s --to %s` sends the rest",
                        title, log, self._run, name,
                    )  # fmt: skip
            except subprocess.TimeoutExpired:
                # no warning, because run.json keeps warnings after the exporter's end
                logger.info(
                    "the exporter to %s (process %d) is still sending, and goes on by itself: %s",
                    title, process.pid, log,
                )  # fmt: skip


def _start(run: Path, name: str) -> subprocess.Popen:
    log = _log(run, name)
    log.parent.mkdir(exist_ok=True)
    # the end of a job kills all processes with the job's variable, but the exporter may outlive the job
    environment = {key: value for key, value in os.environ.items() if key != JOB_VARIABLE}
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "aligner_lib.run_folder.exporters", str(run), name],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )


def _log(run: Path, name: str) -> Path:
    return run / "exporters" / f"{name}.log"
