"""Atomic writes: a file or a folder gets its final name only when it is complete."""

import errno
import glob
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

SUFFIX, RANDOM = ".partial", "?" * 8  # eight characters of tempfile


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A free path in a new hidden folder beside `path`, for a file or a folder. The caller renames the result to `path`.

    The hidden folder has a random name, so the end of the block removes only files of this call. A killed process leaves the
    folder behind. The function also makes the missing parent folders of `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = _prefix(path)
    with tempfile.TemporaryDirectory(SUFFIX, prefix, path.parent, ignore_cleanup_errors=True) as folder:
        # inside the temporary folder, because only its owner can enter the folder
        yield Path(folder) / path.name


def partials(path: Path) -> list[Path]:
    """The hidden folders of `atomic_path` beside `path`, of running and of killed processes."""
    return sorted(path.parent.glob(f"{glob.escape(_prefix(path))}{RANDOM}{SUFFIX}"))


def _prefix(path: Path) -> str:
    return f".{path.name[:50]}."


@contextmanager
def atomic_text_files(*paths: Path) -> Iterator[tuple[TextIO, ...]]:
    """Open ASCII text files under temporary names, and rename them to `paths` when the block ends without an error.

    An error removes the temporary files and keeps the earlier files. A killed process leaves at most a hidden `.partial`
    folder. Raises OSError, which names the files, when the disk is full.
    """
    try:
        with ExitStack() as stack:
            partials = [stack.enter_context(atomic_path(path)) for path in paths]
            with ExitStack() as files:
                opened = (partial.open("w", encoding="ascii", newline="\n") for partial in partials)
                yield tuple(files.enter_context(stream) for stream in opened)
            for partial, path in zip(partials, paths, strict=True):
                partial.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            names = " and ".join(map(str, paths))
            raise OSError(errno.ENOSPC, f"the disk is full: free space to write {names}") from error
        raise
