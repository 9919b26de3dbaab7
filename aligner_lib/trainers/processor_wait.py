"""How long a job could not compute because other processes occupied the cores."""

from __future__ import annotations

from pathlib import Path

SCHEDSTAT = Path("/proc/self/schedstat")


class ProcessorWait:
    """Measures the seconds in which this process's main thread was ready to run but had no core, as Linux's scheduler counts
    them.

    OpenMP's threads share each operation with the main thread, so a step waits at least as long. Reading the counters of all
    threads would take milliseconds, because torch's process groups have dozens of threads.
    """

    def __init__(self, file: Path = SCHEDSTAT):
        self._file = file
        self._before = self._waited()

    def seconds(self) -> float | None:
        """Seconds since the last call; None if the system does not count them."""
        before, self._before = self._before, self._waited()
        return None if before is None or self._before is None else (self._before - before) / 1e9

    def _waited(self) -> int | None:
        """Nanoseconds on a run queue since the process began."""
        try:
            _, on_a_queue, _ = self._file.read_text().split()
        except OSError:
            return None
        return int(on_a_queue)
