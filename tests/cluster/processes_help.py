"""Helpers for tests with real processes: they wait for conditions, within a bound."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

BOUND_S = 120.0  # nothing takes so long, except on a machine that is busy with something else


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until(condition: Callable[[], object], what: str | Callable[[], str], bound_s: float = BOUND_S):
    """The condition's first true value; fails when there is none within the bound, with `what` or its result."""
    deadline = time.monotonic() + bound_s
    pause = threading.Event()
    while time.monotonic() < deadline:
        if value := condition():
            return value
        pause.wait(0.02)
    raise AssertionError(f"not within {bound_s} s: {what() if callable(what) else what}")


class Gate:
    """A child blocks on the gate (code: `gate.code`) until the test opens it."""

    def __init__(self, path: Path):
        self.path = path
        os.mkfifo(path)
        self.code = f"open({str(path)!r}).read()"

    def open(self) -> None:
        self.path.write_text("go")
