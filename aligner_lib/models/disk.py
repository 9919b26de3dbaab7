"""A clear error for a full disk: it names the folder, and how to choose another."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aligner_lib.errors import UserError


class DiskFull(UserError, OSError):
    """The disk, or the user's quota, has no room for a model's files."""


@contextmanager
def told_when_full(folder: Path, elsewhere: str) -> Iterator[None]:
    """A context manager: an OSError for a full disk becomes a DiskFull that names `folder`.

    elsewhere: how the user chooses another folder, for the message.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFull) or not is_full(error):  # the inner folder is the one that is full
            raise
        raise DiskFull(
            f"the disk is full: free space for {folder}, or choose another disk ({elsewhere})"
        ) from error


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or one that caused it, means a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
