"""A limit on the time that a learner's function has: its loop may never end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LoopWithoutEnd(BaseException):
    """The time is over. No Exception, so that a learner's `except Exception` in the loop does not keep the loop alive."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises LoopWithoutEnd in this thread when the block has taken so many seconds, in whatever thread and system it is.

    Python raises it between two instructions, so a single long call of C delays it.
    """
    this_thread, raise_in = ctypes.c_ulong(threading.get_ident()), ctypes.pythonapi.PyThreadState_SetAsyncExc
    timer = threading.Timer(seconds, raise_in, (this_thread, ctypes.py_object(LoopWithoutEnd)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        # an exception that is under way must not reach what comes after the block
        raise_in(this_thread, None)
