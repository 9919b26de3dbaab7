"""JSON Lines on disk: a single writer appends, and any number of readers follow.

The files may be on NFS. A reader opens the file again on every poll (close-to-open consistency) and takes only lines that end
in a newline. The reader starts again at the beginning after the file was truncated or replaced.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from aligner_lib.run_folder.files import UnreadableFileError, open_regular

FSYNC_SECONDS = 1.0
TAIL_BYTES = 256
BLOCK_BYTES = 1 << 16
LONGEST_LINE = 64 << 20
"""The most bytes of a line that a poll with a limit reads. A rollout has at most some megabytes."""
BLANK = b"\0 \r\t"  # NFS shows blocks that are not written yet as NUL bytes


class JsonlWriter:
    """Appends records to a file. Each record is flushed at once; fsync runs about once a second."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend_last_line(self.path)
        # Half of a surrogate pair, for example from a text cut in the middle, has no UTF-8; the escape is the same text in JSON.
        self._file = open(self.path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  (open as long as the run)
        self._synced = time.monotonic()

    def append(self, record: dict) -> None:
        """Write a record as a line of JSON."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        if time.monotonic() - self._synced > FSYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Sync the file to disk and close it. Further calls do nothing."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


class JsonlReader:
    """Follows a JSON Lines file: `poll()` returns the records written since the last poll.

    longest_line: the most bytes of a line that a poll with a limit reads. Attributes: `restarts` counts how often the file shrank
    or was replaced, which makes earlier records invalid. `skipped` counts complete lines that were not a JSON object.
    """

    def __init__(self, path: Path, longest_line: int = LONGEST_LINE):
        self.path = Path(path)
        self.longest_line = longest_line
        self.offset = 0
        self.restarts = 0
        self.skipped = 0
        self._inode: int | None = None
        self._last = b""  # the last bytes read; a rewritten file has other bytes here

    def poll(self, max_bytes: int | None = None) -> list[dict]:
        """Return the new complete records, oldest first; empty without new records, and before the file exists.

        max_bytes: the approximate limit of a read. To follow a large file in little memory, poll until the result is empty.
        Raises UnreadableFileError for anything but a regular file, and with max_bytes for a line of over `longest_line` bytes.
        """
        chunk = self._read(max_bytes)
        end = chunk.rfind(b"\n") + 1  # the text after the last newline is still being written
        if not end:
            if not chunk or max_bytes is None or len(chunk) < max_bytes:
                return []
            if max_bytes >= self.longest_line:
                raise UnreadableFileError(
                    f"{self.path} has a line of over {self.longest_line >> 20} MiB: remove the file, or the line"
                )
            return self.poll(2 * max_bytes)  # a line is longer than max_bytes
        self.offset += end
        self._last = chunk[max(0, end - TAIL_BYTES) : end]
        return self._parse(chunk[:end])

    def _read(self, max_bytes: int | None) -> bytes:
        try:
            with open_regular(self.path) as file:
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
        """Whether the file is still the same as at the last poll.

        A resumed run truncates its files, and may have written past the old end since then.
        """
        if status.st_size < self.offset or status.st_ino != self._inode:
            return False
        file.seek(self.offset - len(self._last))
        return file.read(len(self._last)) == self._last

    def _parse(self, chunk: bytes) -> list[dict]:
        lines = chunk.count(b"\n")
        if chunk.startswith(b"{") and chunk.count(b"}\n{") == lines - 1:
            try:
                # a call for the whole chunk is twice as fast as a call for each line
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
    """The record in a line; None for a line that is not a JSON object."""
    try:
        record = json.loads(line.strip(BLANK))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def truncate_after(path: Path, step: int) -> int:
    """Truncate a file before the first record with a greater `step`, because a resumed run writes these steps again.

    Returns the number of remaining lines that are not records.
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
    """Drop an incomplete last line, which a killed writer leaves."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        size = begin = file.seek(0, os.SEEK_END)
        block = b""
        while begin and b"\n" not in block:  # a file can be larger than the memory
            begin, end = max(0, begin - BLOCK_BYTES), begin
            file.seek(begin)
            block = file.read(end - begin)
    whole = begin + block.rfind(b"\n") + 1
    if whole < size:
        os.truncate(path, whole)
