"""Calls that must arrive in their order: one thread sends them one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class SerialExecutor:
    """A daemon thread: a call that hangs does not keep the process from ending."""

    def __init__(self):
        self._waiting: queue.Queue[tuple[Callable, Future]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, call: Callable[[], object]) -> Future:
        future: Future = Future()
        self._waiting.put((call, future))
        return future

    def _run(self) -> None:
        while True:
            call, future = self._waiting.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
