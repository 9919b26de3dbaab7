"""The peak memory of the largest process in a process tree, measured from outside."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil

GIB = 1 << 30
SECONDS = 0.5  # between two samples


class PeakMemory:
    """Measures the current process and its descendants while a `with` block runs.

    Linux records the peak resident size of each process (VmHWM), so a single sample before a process ends is enough.
    On other systems, the result is the largest sampled resident size.
    """

    def __init__(self):
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    @property
    def gib(self) -> float:
        """The peak so far, in GiB."""
        return self.bytes / GIB

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        root = psutil.Process()
        while True:
            last = self._stop.is_set()  # read before sampling, so that a short block still gets a sample
            for process in [root, *root.children(recursive=True)]:
                self.bytes = max(self.bytes, _peak_bytes(process))
            if last:
                return
            self._stop.wait(SECONDS)


def _peak_bytes(process: psutil.Process) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0  # the process has ended
