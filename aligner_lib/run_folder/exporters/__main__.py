"""`python -m aligner_lib.run_folder.exporters RUN SERVICE`: the process that a run starts for each service."""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.exporters.tail import follow
from aligner_lib.run_folder.reader import RunFolder

LOWEST = 19  # the highest nice value, which is the lowest priority


def main(run: str, service: str) -> None:
    """Send a run until the run has ended, at the lowest priority. Exits with 1 if a part was not sent."""
    _step_back()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.INFO)
    logging.raiseExceptions = False  # a full disk must not raise an error from a log call
    try:
        last = follow(RunFolder(run), service, until_over=True, wait_for_lock=True, pause=Pause())
        logging.info("everything was sent, up to step %d", last)
    except (UserError, OSError) as error:  # OSError: the disk was full from the start
        logging.error("%s", error)
        sys.exit(1)


def _step_back() -> None:
    """Lower the priority of this process: the exporter gets only the time that the run leaves free."""
    os.nice(LOWEST)
    with suppress(OSError):  # where Linux shares the cores among sessions, nice only acts within a session
        Path("/proc/self/autogroup").write_text(str(LOWEST))


class Pause:
    """Waits, and returns early when the run's process reports its end on standard input or disappears."""

    woken = False

    def __call__(self, seconds: float) -> None:
        """Wait at most `seconds`."""
        if self.woken:
            time.sleep(seconds)
        else:
            self.woken = bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
