"""Token files in progress: hidden files that grow, and get their final names when they are complete.

After a kill, the same call can be repeated and continues where the killed call stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from aligner_lib.datasets.indexed_dataset import DTYPES, files_of_prefix, write_index
from aligner_lib.datasets.samples import LoadReport
from aligner_lib.errors import UserError


@dataclass
class TokenFiles:
    """A summary of the written files."""

    prefix: Path
    documents: int
    tokens: int
    bytes: int
    """Size of both files together."""
    went_on: int = 0
    """The number of documents written by an earlier call."""
    report: LoadReport = field(default_factory=LoadReport)
    """The records that became empty documents."""

    def __str__(self) -> str:
        files = " and ".join(path.name for path in files_of_prefix(self.prefix))
        written = f"{files}: {self.documents:,} documents, {self.tokens:,} tokens, {self.bytes / 1e6:.1f} MB"
        before = f"{self.went_on:,} of the documents were there already" if self.went_on else ""
        return "\n".join(filter(None, [written, before, *self.report.lines()]))


class Encoded(NamedTuple):
    """The token ids of a chunk of lines."""

    ids: bytes
    lengths: list[int]
    """Number of tokens of each line; 0 for a line without a text."""
    problems: list[tuple[int, str]]
    """The numbers of lines without a text, and the reasons."""


class Unfinished:
    """The files of a prefix in progress: `.NAME.bin.partial`, and a file with the documents' lengths."""

    def __init__(self, prefix: Path, about: dict, dtype: int):
        self.prefix, self.about, self.dtype = prefix, about, dtype
        self.bin, self.idx = files_of_prefix(prefix)
        self.json = about_file(prefix)
        self._bin, self._lengths, self._about = (
            prefix.with_name(f".{prefix.name}.{name}.partial") for name in ("bin", "lengths", "about")
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A context manager: keeps other calls from writing. Raises UserError when another call is writing."""
        with open(self.prefix.with_name(f".{self.prefix.name}.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another call is writing {self.prefix}: wait for its end") from None
            except OSError:
                pass  # a file system without locks
            try:
                yield
            finally:
                Path(lock.name).unlink()

    def is_complete(self) -> bool:
        """Whether the files are complete. Raises UserError when existing files have another source or other options."""
        if self._same(self._about):
            # the earlier call was killed while renaming the files
            if not self._bin.exists() and self.bin.exists():
                self.bin.replace(self._bin)
            return False
        there = [path for path in (self.bin, self.idx) if path.exists()]
        if len(there) == 2 and self._same(self.json):
            return True
        if there:
            raise UserError(
                f"the files of {self.prefix} were made from another file, tokenizer or options: remove "
                f"{' and '.join(map(str, there))}, or give another --output-prefix"
            )
        return False

    @property
    def documents(self) -> int:
        """The number of documents in complete files."""
        return json.loads(self.json.read_text())["documents"]

    @contextmanager
    def opened(self) -> Iterator[np.ndarray]:
        """Open the files for appending. Yields the lengths of the documents written by an earlier call, int32 [D]."""
        if not (self._same(self._about) and self._bin.exists() and self._lengths.exists()):
            # the description goes first, so that a kill here leaves no old files with a new description
            self._about.unlink(missing_ok=True)
            self._bin.write_bytes(b"")
            self._lengths.write_bytes(b"")
            self._about.write_text(json.dumps(self.about))
        size, item = self._bin.stat().st_size, np.dtype(DTYPES[self.dtype]).itemsize
        stored = self._lengths.read_bytes()
        lengths = np.frombuffer(stored[: len(stored) // 4 * 4], "<i4")
        ends = np.cumsum(lengths, dtype=np.int64) * item
        whole = int(np.searchsorted(ends, size, side="right"))  # a kill may have cut off either file
        lengths = lengths[:whole]
        os.truncate(self._bin, int(ends[whole - 1]) if whole else 0)
        os.truncate(self._lengths, 4 * whole)
        with open(self._bin, "ab") as self._ids_file, open(self._lengths, "ab") as self._lengths_file:
            yield lengths

    def append(self, encoded: Encoded) -> None:
        """Append a chunk: first the ids, then the lengths, so that no length is stored without its ids."""
        for file, content in (
            (self._ids_file, encoded.ids),
            (self._lengths_file, np.array(encoded.lengths, "<i4").tobytes()),
        ):
            file.write(content)
            file.flush()

    def discard(self) -> None:
        """Remove the unfinished files."""
        for path in (self._about, self._bin, self._lengths):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Write the index, and give all files their final names."""
        lengths = np.fromfile(self._lengths, "<i4")
        about = self.about | {"documents": len(lengths), "tokens": int(lengths.sum(dtype=np.int64))}
        _aside(self.idx, lambda file: write_index(file, self.dtype, lengths))
        self._bin.replace(self.bin)
        _aside(self.json, lambda file: file.write(json.dumps(about, indent=1).encode()))
        for path in (self._about, self._lengths):
            path.unlink()

    def summary(self, went_on: int, report: LoadReport) -> TokenFiles:
        """A summary of the finished files."""
        about = json.loads(self.json.read_text())
        size = self.bin.stat().st_size + self.idx.stat().st_size
        return TokenFiles(self.prefix, about["documents"], about["tokens"], size, went_on, report)

    def _same(self, file: Path) -> bool:
        """Whether a file describes the same source, tokenizer and options."""
        try:
            stored = json.loads(file.read_text())
        except (OSError, ValueError):
            return False
        return isinstance(stored, dict) and stored | self.about == stored


def about_file(prefix: Path) -> Path:
    """The file beside token files with a description of their source, tokenizer and options."""
    return prefix.with_name(f"{prefix.name}.json")


def _aside(path: Path, write: Callable[[BinaryIO], object]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        write(file)
    partial.replace(path)
