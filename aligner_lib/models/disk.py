"""Writing a model: whole or not at all, and a clear error for a full disk."""

from __future__ import annotations

import errno
import os
import shutil
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


@contextmanager
def whole_or_absent(out: Path, elsewhere: str) -> Iterator[Path]:
    """A context manager: a path beside `out` to write a folder or a file to, which gets the name `out` at the end.

    Nothing is left if the block fails. elsewhere: see `told_when_full`. Raises ValueError when `out` exists, DiskFull.
    """
    if out.exists():
        raise ValueError(f"{out} exists already: remove it, or choose another name")
    partial = out.with_name(out.name + ".partial")
    _remove(partial)
    try:
        with told_when_full(out, elsewhere):
            out.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            os.rename(partial, out)
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_full(error: BaseException | None) -> bool:
    """Whether this error, or one that caused it, means a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
