"""A disk that is full, told as what it is: which folder, and what helps."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aligner_lib.errors import UserError


class DiskFull(UserError, OSError):
    """There is no room, or no quota, for a model's files."""


@contextmanager
def told_when_full(folder: Path, elsewhere: str) -> Iterator[None]:
    """Raises DiskFull for `folder` in place of a bare OSError; `elsewhere` is how to choose another one."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFull) or not is_full(error):  # the inner folder is the one that is full
            raise
        raise DiskFull(
            f"the disk is full: free space for {folder}, or choose another disk ({elsewhere})"
        ) from error


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or one that led to it, tells of a full disk or a used-up quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
