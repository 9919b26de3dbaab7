"""Calls in order: a single thread sends the calls one after the other, and sends no call after a failure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class SerialExecutor:
    """Sends calls from a daemon thread, so a hanging call does not keep the process from ending."""

    def __init__(self):
        self._waiting: queue.Queue[tuple[Callable | None, Future]] = queue.Queue()
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, call: Callable[[], object]) -> Future:
        future: Future = Future()
        self._waiting.put((call, future))
        return future

    def recover(self) -> None:
        """Send calls again after a failure. Returns when all earlier calls are answered or have failed."""
        future: Future = Future()
        self._waiting.put((None, future))
        future.result()

    def _run(self) -> None:
        while True:
            call, future = self._waiting.get()
            if call is None:
                self._failure = None
            if self._failure is not None:
                # a later call must not reach a server that has replaced the dead server
                future.set_exception(self._failure)
                continue
            try:
                future.set_result(call and call())
            except BaseException as error:
                self._failure = error
                future.set_exception(error)
