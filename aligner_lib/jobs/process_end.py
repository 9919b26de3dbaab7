"""The end of a process after an import of torch."""

import gc
import io
import os
import stat
import sys
import weakref
from contextlib import suppress


def leave_memory(status: int = 0) -> None:
    """End the process after its finalizers, with all open files written. The memory is left to the system.

    Python would free each module of torch and Megatron, for a second in all. Exit functions must have run before.
    """
    weakref.finalize._exitfunc()
    opened = [file for file in gc.get_objects() if issubclass(type(file), io.IOBase)]
    for file in (sys.stdout, sys.stderr, *filter(_is_on_disk, opened)):
        with suppress(Exception):  # a closed pipe, a closed or missing stream
            file.flush()
    os._exit(status)


def _is_on_disk(file: io.IOBase) -> bool:
    """Whether a file is open and regular. A pipe may belong to a process that no longer reads.

    The answer is False for a stream without a file, such as an HTTPResponse after the last read.
    """
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except Exception:
        return False
