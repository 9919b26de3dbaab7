"""How long a notebook's first library cell takes in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks.measure import ImportTime

CELL = "from aligner_lib.tutorial.workspace import Workspace; from widgets import Monitor"
TIMED = f"import time; started = time.perf_counter(); {CELL}; print(time.perf_counter() - started)"


def measure(repeats: int = 3, say: Callable[[str], None] = print) -> ImportTime:
    """Seconds of CELL, by the wall clock: what a reader waits for."""
    seconds = []
    for number in range(1, repeats + 1):
        done = subprocess.run([sys.executable, "-c", TIMED], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the cell `{CELL}` failed:\n{done.stderr}")
        seconds.append(float(done.stdout))
        say(f"imports, {number} of {repeats}: {seconds[-1]:.2f} s")
    return ImportTime(seconds)
