"""How long a job could not compute because other processes had the cores."""

from __future__ import annotations

from pathlib import Path

TASKS = Path("/proc/self/task")


class ProcessorWait:
    """Seconds in which a thread of this process was ready to run and had no core, as Linux's scheduler counts them."""

    def __init__(self, tasks: Path = TASKS):
        self._tasks = tasks
        self._before = self._waited()

    def seconds(self) -> float | None:
        """Seconds since the last call, of the thread that waited longest; None where the system does not count them.

        OpenMP's threads share each operation, so a step takes at least as much longer as its slowest thread waited.
        """
        before, self._before = self._before, self._waited()
        if not self._before:
            return None
        return max(waited - before.get(thread, 0) for thread, waited in self._before.items()) / 1e9

    def _waited(self) -> dict[str, int]:
        """Nanoseconds on a run queue, of each thread since its start."""
        waited = {}
        for file in self._tasks.glob("*/schedstat"):
            try:
                _, on_a_queue, _ = file.read_text().split()
            except OSError:
                continue  # the thread has ended
            waited[file.parent.name] = int(on_a_queue)
        return waited
