"""The delay of the monitor: from a record in the run folder to the browser's chart, and for attaching to a long run."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import WaitTimes
from benchmarks.setting import Setting

TESTS = Path(__file__).parents[1] / "tests"
RECORD, ATTACH = "a record's way to the browser (median of 20)", "attach to a million records"
AIMS = {RECORD: 1.0, ATTACH: 3.0}
RECORDS_A_SECOND = 4
ATTACHING = (
    "import sys, time; from widgets import Monitor; started = time.perf_counter(); Monitor(sys.argv[1]); "
    "print(time.perf_counter() - started)"
)


def check_browser() -> None:
    """End the program if there is no browser to measure with."""
    _find_tests()
    from lab import chromium

    if chromium() is None:
        sys.exit(
            "error: monitor needs a browser, and there is no Chromium on the PATH: install the system's package "
            "`chromium`, or name the other parts with --only"
        )


def measure(setting: Setting, say: Callable[[str], None] = print) -> WaitTimes:
    _find_tests()
    seconds = {
        RECORD: [statistics.median(_delays(setting.folder))],
        ATTACH: [_attaching(setting.folder / "long")],
    }
    for what, runs in seconds.items():
        say(f"monitor: {min(runs):.2f} s: {what}")
    return WaitTimes("monitor", seconds, AIMS)


def _find_tests() -> None:
    # tests/browser has JupyterLab in a browser, tests/widgets a fake trainer
    sys.path[:0] = [str(TESTS / name) for name in ("browser", "widgets")]


def _delays(folder: Path) -> list[float]:
    import fake_trainer
    from lab import Lab, Page, chromium, wait_for
    from playwright.sync_api import sync_playwright

    from aligner_lib.run_folder.reader import RunFolder

    run = RunFolder(folder / "live")
    command = [sys.executable, fake_trainer.__file__, str(run.path), "--steps=400"]
    trainer = subprocess.Popen([*command, f"--seconds={1 / RECORDS_A_SECOND}"])
    try:
        with Lab(folder / "lab") as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            page = Page(browser.new_page(), server)
            wait_for(run.metrics, "the fake trainer wrote nothing")
            page.show("live.ipynb", f"from widgets import Monitor\nMonitor({str(run.path)!r})")
            page.wait_for_points(1)
            page.note_arrivals()
            known = int(max(page.points()))
            page.wait_for_points(known + 22)
            return page.delays(run, range(known + 2, known + 22))
    finally:
        trainer.kill()
        trainer.wait()


def _attaching(folder: Path) -> float:
    from test_bounds import write_million

    write_million(folder)
    done = subprocess.run(
        [sys.executable, "-c", ATTACHING, str(folder)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)
