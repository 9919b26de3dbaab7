"""The tutorial with the smoke profile, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aligner_lib.tutorial.exercises.registry import exercises

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


def summary_of(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


def info_of(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def assert_solutions_pass(out: Path, number: str, *of_others: str) -> None:
    """A notebook says of each of its exercises, and of these exercises of other notebooks, that the solution passed."""
    [notebook] = (out / "notebooks").glob(f"{number}_*.ipynb")
    shown = notebook.read_text()
    own = [name for name, exercise in exercises().items() if exercise.notebook == number]
    assert own and [name for name in (*own, *of_others) if f"✓ {name}: passed" not in shown] == []
