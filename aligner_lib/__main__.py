"""The process of the command `aligner`, also as `python -m aligner_lib`."""

import atexit
import os
import sys
import threading
from contextlib import suppress

from aligner_lib.errors import UserError


def run() -> None:
    """Run the command line, and end the process."""
    try:
        # The import makes a command for each kind of job, also for those of ALIGNER_KINDS.
        from aligner_lib.cli.main import main
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        main()
    except SystemExit as end:
        if "torch" in sys.modules and isinstance(end.code, int | None):
            _end_at_once(end.code or 0)
        raise


def _end_at_once(status: int) -> None:
    """End the process after its threads and its exit functions, and leave the memory to the system. Python would first free torch's
    modules one by one, which takes a sixth of a short job's CPU time."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a closed pipe, or a closed stream
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
