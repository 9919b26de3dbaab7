"""The process of the command `aligner`, also as `python -m aligner_lib`."""

import atexit
import sys
import threading

from aligner_lib.errors import UserError
from aligner_lib.jobs.process_end import leave_memory


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
    """End the process after its threads and its exit functions."""
    threading._shutdown()
    atexit._run_exitfuncs()
    leave_memory(status)


if __name__ == "__main__":
    run()
