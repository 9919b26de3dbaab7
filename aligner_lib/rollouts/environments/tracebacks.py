"""Tracebacks of an environment after an exception or a hang, without the surrounding frames of this package."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from aligner_lib.config import user_module

AROUND = (
    *(str(Path(__file__).with_name(f"{name}.py")) for name in ("worker", "registry", "user_file")),
    user_module.__file__,
)


def of_error(error: BaseException) -> str:
    """An exception's traceback, starting at the environment's first frame."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename in AROUND:
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place)).rstrip()


def limit_of_dump(text: str) -> float:
    """The time limit in seconds that faulthandler enforced, from the first line of its traceback: `Timeout (0:02:00)!`."""
    hours, minutes, seconds = re.match(r"Timeout \((\d+):(\d+):([\d.]+)\)!", text).groups()
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


def of_dump(text: str) -> str:
    """The environment's frames, the innermost first, from faulthandler's traceback of a process."""
    for thread in text.split("\n\n"):
        frames = [line for line in thread.splitlines() if line.startswith("  File")]
        around = [i for i, line in enumerate(frames) if any(f'"{file}"' in line for file in AROUND)]
        if around:
            return "\n".join(frames[: around[0]])
    return text.strip()
