"""A part of a file, read by position like a separate file. A single read returns at most `MAX_READ` bytes."""

from __future__ import annotations

import io
import os
from typing import BinaryIO

MAX_READ = 1 << 23  # bytes; limits reads, because the lengths stored in a file may be wrong


class Window(io.RawIOBase):
    """The bytes [start, start + size) of an open file, read-only and seekable.

    Raises ValueError for a read of more than MAX_READ bytes at once.
    """

    def __init__(self, file: BinaryIO, start: int, size: int, owns_file: bool = False):
        super().__init__()
        self.size = size
        self._file, self._start, self._owns_file = file, start, owns_file
        self._position = 0

    def part(self, start: int, size: int) -> Window:
        """A window within this window. Raises ValueError for a part beyond the end."""
        if min(start, size) < 0 or start + size > self.size:
            raise ValueError(f"bytes {start} to {start + size} of a file with {self.size} bytes")
        return Window(self._file, self._start + start, size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError("a position before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(self.size - self._position, 0)
        size = left if size is None or size < 0 else size
        if size > MAX_READ:
            raise ValueError(f"a read of {size} bytes at once, more than the {MAX_READ} allowed")
        return super().read(min(size, left))

    def readinto(self, buffer) -> int:
        view = memoryview(buffer).cast("B")
        count = max(min(len(view), self.size - self._position), 0)
        read = os.preadv(self._file.fileno(), [view[:count]], self._start + self._position) if count else 0
        self._position += read
        return read

    def close(self) -> None:
        if self._owns_file and not self.closed:
            self._file.close()
        super().close()
