"""Write a model completely or not at all, with a clear error for a full or read-only disk."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aligner_lib.errors import UserError
from data.atomic_files import atomic_path, partials

logger = logging.getLogger(__name__)


class DiskFull(UserError, OSError):
    """The disk, or the user's quota, has no room for a model's files."""


class Unwritable(UserError, OSError):
    """A place where this account can't write. `errno` is the system's, as callers that can do without the place ask for it."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.errno = number

    def __new__(cls, message: str, number: int):
        return super().__new__(cls, message)  # OSError would take two arguments for a number and a text


@contextmanager
def explain_full_disk(folder: Path, elsewhere: str) -> Iterator[None]:
    """A context manager: turns an OSError for a full disk into a DiskFull error that names `folder`.

    elsewhere: advice for the error message, on how to choose another folder.
    """
    try:
        yield
    except OSError as error:
        # a DiskFull from an inner block already names the full folder
        if isinstance(error, DiskFull) or not is_full(error):
            raise
        raise DiskFull(
            f"the disk is full: free space for {folder}, or choose another disk ({elsewhere})"
        ) from error


@contextmanager
def explain_read_only(message: Callable[[str], str]) -> Iterator[None]:
    """A context manager: turns an OSError for a folder that can't be written into a UserError.

    message: a function from the system's reason ("Read-only file system") to the error's text.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise UserError(message(os.strerror(error.errno))) from error


@contextmanager
def whole_or_absent(out: Path, elsewhere: str) -> Iterator[Path]:
    """A context manager: yields a path for a folder or a file, and renames the path to `out` at the end.

    The path lies in a new hidden folder beside `out`, and only the hidden folder is ever removed. If the block fails, nothing
    is left. elsewhere: see `explain_full_disk`. Raises ValueError when `out` exists before or after the block, Unwritable, and
    DiskFull.
    """
    _check_free(out)
    with explain_full_disk(out, elsewhere), ExitStack() as stack:
        _warn_of_partials(out)
        try:
            partial = stack.enter_context(atomic_path(out))
        except OSError as error:
            if is_full(error):
                raise
            message = f"{out} can't be written ({error.strerror}: {error.filename}): choose another place ({elsewhere})"
            raise Unwritable(message, error.errno) from error
        yield partial
        # writing a large model takes minutes, and a rename replaces an existing file silently
        _check_free(out)
        os.rename(partial, out)


def _check_free(out: Path) -> None:
    if os.path.lexists(out):
        raise ValueError(f"{out} exists already: remove {out}, or choose another name")


def _warn_of_partials(out: Path) -> None:
    """Name the hidden folders of killed processes, which may be as large as a model."""
    if left := partials(out):
        logger.warning(
            f"{', '.join(map(str, left))}: left by a process that wrote {out} and was killed, or that still writes: remove the folder "
            "if no such process runs"
        )


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or an error in its chain of causes, is due to a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
