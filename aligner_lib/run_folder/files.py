"""Reads files that somebody else may have written, for example a participant of a workshop."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import BinaryIO

from aligner_lib.errors import UserError

LARGEST_JSON = 16 << 20
"""The most bytes of a JSON file. run.json and its like have some kilobytes."""


class UnreadableFileError(UserError, ValueError):
    """Not a regular file, too large, or no JSON object."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read its bytes. Raises OSError, and UnreadableFileError for anything but a regular file."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  (the caller closes the file)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnreadableFileError(f"{path} is no regular file, but for example a named pipe: remove it")
    return file


def read_object(path: Path) -> dict:
    """The object in a JSON file. Raises OSError, and UnreadableFileError for anything but a regular file with a JSON object."""
    with open_regular(path) as file:
        content = file.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise UnreadableFileError(f"{path} has over {LARGEST_JSON >> 20} MiB: remove it, or write it anew")
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets in brackets
        value = None
    if not isinstance(value, dict):
        raise UnreadableFileError(f"{path} is no JSON object: remove it, or write it anew")
    return value


def _without_waiting(path: str, flags: int) -> int:
    # without O_NONBLOCK, opening a named pipe waits until somebody writes into the pipe
    return os.open(path, flags | os.O_NONBLOCK)
