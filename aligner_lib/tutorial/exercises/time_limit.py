"""A time limit for a learner's function, because its loop may never end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LoopWithoutEnd(BaseException):
    """The time limit is over. Derives from BaseException, so that the learner's `except Exception` cannot catch the error."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise LoopWithoutEnd in the current thread if the block takes longer than `seconds`. Works in any thread and system.

    Python raises the error between two bytecode instructions, so a long call of a C function delays the error.
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
        # withdraw an error that the timer has set but Python has not raised yet: code after the block must not receive it
        raise_in(this_thread, None)
