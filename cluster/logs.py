"""Read log files while another process writes them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

# Examples: "ValueError: text", "torch.cuda.OutOfMemoryError: text", "KeyboardInterrupt"; ranks may print a prefix first. A
# program that explains a user's mistake in a line prints "error: text" or "error (rank 3): text".
_EXCEPTION = re.compile(
    r"^(?:\[[^\]]*\]:?\s*)?"
    r"((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failed|Warning)\b.*|error(?: \(rank \d+\))?: .*)$"
)
_BLOCK = 64 * 1024


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a text file, read from the end; "" while the file does not exist."""
    if lines <= 0 or not path.exists():
        return ""
    with path.open("rb") as file:
        position = file.seek(0, 2)
        blocks: list[bytes] = []
        newlines = 0
        while position > 0 and newlines <= lines:
            step = min(_BLOCK, position)
            position -= step
            file.seek(position)
            blocks.append(file.read(step))
            newlines += blocks[-1].count(b"\n")
    return "\n".join(b"".join(reversed(blocks)).decode(errors="replace").splitlines()[-lines:])


def exception_line(text: str) -> str:
    """The last line of `text` that names an exception or explains an error; "" without such a line."""
    exceptions = [match[1] for line in text.splitlines() if (match := _EXCEPTION.match(line.rstrip()))]
    return exceptions[-1] if exceptions else ""


class Follower:
    """Reads whole lines of a growing file.

    The file is reopened on each poll, because a network file system shows another machine's writes when a file is opened.
    """

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """The lines completed since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._offset:  # truncated: another attempt rewrites the file
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def last_line(self) -> list[str]:
        """The rest of the file, a last line without a newline. Call `last_line` when the writer has ended."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


def follow(path: Path, done: Callable[[], bool], pause: Callable[[], None]) -> Iterator[str]:
    """Lines of `path`, as soon as they are written, until `done()` returns True; `pause()` is called between two polls."""
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
