"""JSON Lines on disk: one writer appends, any number of readers follow.

Works on NFS: the reader opens the file anew on every poll (close-to-open consistency), takes only lines that end
in a newline, and starts again when the file was truncated or replaced.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

FSYNC_SECONDS = 1.0
TAIL_BYTES = 256
BLANK = b"\0 \r\t"  # NFS shows blocks not yet written as NULs


class JsonlWriter:
    """Append records to a file; each is flushed at once and reaches the disk about once a second."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend_last_line(self.path)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  (open as long as the run)
        self._synced = time.monotonic()

    def append(self, record: dict) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        if time.monotonic() - self._synced > FSYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


class JsonlReader:
    """Follow a JSON Lines file: `poll()` gives the records that came since the last poll.

    Attributes: `restarts` counts how often the file shrank or was replaced (what was read before no longer holds);
    `skipped` counts complete lines that were no JSON object.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.offset = 0
        self.restarts = 0
        self.skipped = 0
        self._inode: int | None = None
        self._last = b""  # the end of what was read: a file that was rewritten no longer has it there

    def poll(self, max_bytes: int | None = None) -> list[dict]:
        """The new complete records, oldest first; empty when there are none or no file yet.

        With `max_bytes`, at most about so much is read: poll again until nothing comes, and a file of any size is
        followed in little memory.
        """
        chunk = self._read(max_bytes)
        end = chunk.rfind(b"\n") + 1  # what follows the last newline is still being written
        if not end:
            # Either nothing is there or a single line is longer than max_bytes.
            return self.poll() if chunk and max_bytes is not None and len(chunk) == max_bytes else []
        self.offset += end
        self._last = chunk[max(0, end - TAIL_BYTES) : end]
        return self._parse(chunk[:end])

    def _read(self, max_bytes: int | None) -> bytes:
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if self.offset and not self._still_holds(file, status):
                    self.offset, self.restarts, self._last = 0, self.restarts + 1, b""
                    self.skipped = 0
                self._inode = status.st_ino
                file.seek(self.offset)
                size = status.st_size - self.offset
                return file.read(size if max_bytes is None else min(size, max_bytes))
        except FileNotFoundError:
            return b""

    def _still_holds(self, file, status: os.stat_result) -> bool:
        """Is this the file that was read so far? A resumed run cuts it and may have grown it past the old end."""
        if status.st_size < self.offset or status.st_ino != self._inode:
            return False
        file.seek(self.offset - len(self._last))
        return file.read(len(self._last)) == self._last

    def _parse(self, chunk: bytes) -> list[dict]:
        lines = chunk.count(b"\n")
        if chunk.startswith(b"{") and chunk.count(b"}\n{") == lines - 1:
            try:
                # One call for the whole chunk is twice as fast as one a line.
                records = json.loads(b"[" + chunk[:-1].replace(b"\n", b",") + b"]")
            except (ValueError, RecursionError):
                records = []
            if len(records) == lines:
                return records
        return list(self._parse_lines(chunk))

    def _parse_lines(self, chunk: bytes):
        for line in chunk.split(b"\n"):
            record = _parse_line(line)
            if record is not None:
                yield record
            elif line.strip(BLANK):
                self.skipped += 1


def _parse_line(line: bytes) -> dict | None:
    """The line's record; None when it is no JSON object."""
    try:
        record = json.loads(line.strip(BLANK))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def truncate_after(path: Path, step: int) -> int:
    """Cut a file of records at the first one whose `step` is past the given one: what a resumed run writes again.

    Lines that are no records don't hinder it: returns how many of them stay between the records.
    """
    if not path.exists():
        return 0
    keep = place = odd = odd_kept = 0
    with open(path, "rb") as file:
        for line in file:
            place += len(line)
            reached = (_parse_line(line) or {}).get("step")
            if not line.endswith(b"\n"):
                break
            if type(reached) not in (int, float):
                odd += bool(line.strip(BLANK + b"\n"))
            elif reached > step:
                break
            else:
                keep, odd_kept = place, odd
    os.truncate(path, keep)
    return odd_kept


def _mend_last_line(path: Path) -> None:
    """Drop a torn last line, which a killed writer leaves, so that the next record starts on a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
