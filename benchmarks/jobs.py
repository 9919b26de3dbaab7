"""Jobs that a benchmark runs to their end, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.workspace.workspace import Workspace


def run(
    lab: Workspace, kind: str, name: str, settings: dict, environment: dict[str, str] | None = None
) -> RunFolder:
    """Run a job with additional environment variables. Ends the program when the job fails."""
    [command] = lab.commands(kind, name, **settings).values()
    log = lab.out / f"{name}.log"
    if code := execute(command, log, environment or {}):
        sys.exit(f"{name} ended with {code}:\n" + log.read_text(errors="replace")[-3000:])
    return lab.run(name)


def execute(command: list[str], log: Path, environment: dict[str, str]) -> int:
    """Run a command with its output in the log. Returns the exit code."""
    with log.open("wb") as output:
        return subprocess.run(command, stdout=output, stderr=output, env=os.environ | environment).returncode


def step_records(run: RunFolder, warm_up: int) -> list[dict]:
    """The records of a run's optimiser steps. warm_up: the number of first steps to leave out."""
    return [record for record in run.metrics() if "timers/step_time" in record][warm_up:]
