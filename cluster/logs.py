"""Read log files that another process is writing."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

# "ValueError: text", "torch.cuda.OutOfMemoryError: text", "KeyboardInterrupt"; ranks may put a prefix before it.
# "error: text", "error (rank 3): text": a program that explains a user's mistake in a line.
_EXCEPTION = re.compile(
    r"^(?:\[[^\]]*\]:?\s*)?"
    r"((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failed|Warning)\b.*|error(?: \(rank \d+\))?: .*)$"
)
_BLOCK = 64 * 1024


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a text file, read from its end; "" when there is no file yet."""
    if lines <= 0 or not path.exists():
        return ""
    with path.open("rb") as file:
        position = file.seek(0, 2)
        data = b""
        while position > 0 and data.count(b"\n") <= lines:
            step = min(_BLOCK, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])


def exception_line(text: str) -> str:
    """The last line of `text` that names an exception or explains an error; "" when there is none."""
    exceptions = [match[1] for line in text.splitlines() if (match := _EXCEPTION.match(line.rstrip()))]
    return exceptions[-1] if exceptions else ""


class Follower:
    """Reads whole lines of a growing file.

    It reopens the file on each poll, because a network file system shows another machine's writes at open.
    """

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """The lines that were completed since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._offset:  # truncated: another attempt writes it anew
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def last_line(self) -> list[str]:
        """A last line without a newline, once nobody writes any more."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


def follow(path: Path, done: Callable[[], bool], pause: Callable[[], None]) -> Iterator[str]:
    """Lines of `path` as they are written, until `done()`; `pause()` is called between two polls."""
    follower = Follower(path)
    while True:
        ended = done()  # checked before reading, so that the last lines are still read
        lines = follower.read()
        yield from lines
        if ended:
            yield from follower.last_line()
            return
        if not lines:
            pause()
