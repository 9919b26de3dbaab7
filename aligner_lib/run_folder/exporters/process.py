"""The exporters that a run starts: detached processes, which share nothing with it but the run folder."""

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

END_SECONDS = 10.0  # that a run waits at its end for all of its exporters


class Exporters:
    """A run's exporters. Nothing that happens to them reaches the run; `close` once the run has said how it ended."""

    def __init__(self):
        self._processes: dict[str, subprocess.Popen] = {}
        self._run = Path()

    def start(self, run: Path, names: Iterable[str]) -> None:
        """Start one for each service. One that can't be started is told in the log, and the run goes on."""
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
        """Have them send the rest, and wait END_SECONDS at most: one that takes longer goes on by itself."""
        for process in self._processes.values():
            with suppress(OSError):  # it is gone
                process.stdin.write(b"the run has ended\n")  # wakes it
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
                logger.warning(
                    "the exporter to %s (process %d) is still sending, and goes on by itself: %s",
                    title, process.pid, log,
                )  # fmt: skip


def _start(run: Path, name: str) -> subprocess.Popen:
    log = _log(run, name)
    log.parent.mkdir(exist_ok=True)
    # without its name in the environment, the end of a job leaves it to finish
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
