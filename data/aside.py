"""Files that get their names only when they are complete."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def written_aside(*paths: Path) -> Iterator[tuple[TextIO, ...]]:
    """Open ASCII text files under temporary names; rename them when the block ends without an error.

    An error removes them and keeps the earlier files; a kill leaves at most a hidden `.partial` file. Raises
    OSError, which names the files, when the disk is full.
    """
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    partials = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in paths]
    try:
        with ExitStack() as stack:
            opened = (partial.open("w", encoding="ascii", newline="\n") for partial in partials)
            yield tuple(stack.enter_context(stream) for stream in opened)
        for partial, path in zip(partials, paths, strict=True):
            partial.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            names = " and ".join(map(str, paths))
            raise OSError(errno.ENOSPC, f"the disk is full; free space to write {names}") from error
        raise
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
