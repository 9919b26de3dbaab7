"""The end of a process that has imported torch."""

import gc
import io
import os
import weakref
from contextlib import suppress


def leave_memory(status: int = 0) -> None:
    """End the process after its finalizers, with all open files written. The memory is left to the system.

    Python would free the modules of torch and Megatron one by one, which takes a second. Exit functions must have run before.
    """
    weakref.finalize._exitfunc()
    for opened in [file for file in gc.get_objects() if issubclass(type(file), io.IOBase)]:
        with suppress(OSError, ValueError):  # a closed file, a closed pipe, or a file for reading
            opened.flush()
    os._exit(status)
