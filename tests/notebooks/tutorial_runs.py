"""The tutorial with the smoke profile, as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND_S = 3000


def runs_notebooks(test):
    return pytest.mark.notebooks(pytest.mark.slow(test))


def run_tutorial(out: Path, *options: str) -> None:
    """Run `aligner tutorial` into the folder `out`. Fails with the end of its output unless all notebooks succeed."""
    command = [
        sys.executable,
        "-m",
        "aligner_lib",
        "tutorial",
        "--profile",
        "smoke",
        "--out",
        str(out),
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
