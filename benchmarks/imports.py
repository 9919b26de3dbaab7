"""The time that a fresh interpreter takes for a user's first waits: imports, and the command's help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks.measure import WaitTimes
from benchmarks.setting import Setting

TIMED = "import sys, time\nstarted = time.perf_counter()\n{}\nprint(time.perf_counter() - started)"
# code: time limit in seconds, by the wall clock
AIMS = {
    "from aligner_lib.tutorial import Workspace; from widgets import Monitor": 5.0,  # a notebook's first cell
    "from aligner_lib.cli.main import app; app(['--help'], standalone_mode=False)": 1.0,
    "import aligner_lib": 0.1,
    "import aligner_lib.run_folder.reader": 0.3,
    "import cluster; cluster.submit; cluster.Job": 0.5,
    "import data, data.sample_text.make_samples": 0.5,
    "import widgets; [getattr(widgets, name) for name in widgets.__all__]": 5.0,
}


def measure(setting: Setting, say: Callable[[str], None] = print) -> WaitTimes:
    seconds = {code: [_seconds_of(code) for _ in range(setting.repeats)] for code in AIMS}
    for code, runs in seconds.items():
        say(f"imports: {min(runs):.2f} s: {code}")
    return WaitTimes("imports", seconds, AIMS)


def _seconds_of(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", TIMED.format(code)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"`{code}` failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])
