"""Token files while they are written: hidden files that grow, and get their names when they are complete.

So a call that is made again goes on where the one before was killed.
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
    """What was written."""

    prefix: Path
    documents: int
    tokens: int
    bytes: int  # of both files
    went_on: int = 0  # documents that an earlier call had written
    report: LoadReport = field(default_factory=LoadReport)  # the records that became empty documents

    def __str__(self) -> str:
        files = " and ".join(path.name for path in files_of_prefix(self.prefix))
        written = f"{files}: {self.documents:,} documents, {self.tokens:,} tokens, {self.bytes / 1e6:.1f} MB"
        before = f"{self.went_on:,} of the documents were there already" if self.went_on else ""
        return "\n".join(filter(None, [written, before, *self.report.lines()]))


class Encoded(NamedTuple):
    """A chunk of lines."""

    ids: bytes
    lengths: list[int]  # of each line; 0 where it has no text
    problems: list[tuple[int, str]]  # those lines' numbers, and why


class Unfinished:
    """The files of a prefix while they are written: `.NAME.bin.partial` and the documents' lengths beside it."""

    def __init__(self, prefix: Path, about: dict, dtype: int):
        self.prefix, self.about, self.dtype = prefix, about, dtype
        self.bin, self.idx = files_of_prefix(prefix)
        self.json = about_file(prefix)
        self._bin, self._lengths, self._about = (
            prefix.with_name(f".{prefix.name}.{name}.partial") for name in ("bin", "lengths", "about")
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While one call writes, another one is refused."""
        with open(self.prefix.with_name(f".{self.prefix.name}.lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.prefix} is being written by another call: wait for its end") from None
            try:
                yield
            finally:
                Path(lock.name).unlink()

    def is_complete(self) -> bool:
        """Whether all is there. Raises UserError where what is there was not made of the same."""
        if self._same(self._about):
            if not self._bin.exists() and self.bin.exists():  # killed while the files got their names
                self.bin.replace(self._bin)
            return False
        there = [path for path in (self.bin, self.idx) if path.exists()]
        if len(there) == 2 and self._same(self.json):
            return True
        if there:
            raise UserError(
                f"{there[0]} is there already, and was not made of this file with this tokenizer and these options: remove "
                "it, or give another --output-prefix"
            )
        return False

    @property
    def documents(self) -> int:
        """How many a complete set has."""
        return json.loads(self.json.read_text())["documents"]

    @contextmanager
    def opened(self) -> Iterator[np.ndarray]:
        """Open to append: gives the lengths of the documents that an earlier call has left, int32 [D]."""
        if not (self._same(self._about) and self._bin.exists() and self._lengths.exists()):
            self._about.unlink(missing_ok=True)  # so that a kill here leaves no old files under a new name
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
        """Take down a chunk: first the ids, then that they are there."""
        for file, content in (
            (self._ids_file, encoded.ids),
            (self._lengths_file, np.array(encoded.lengths, "<i4").tobytes()),
        ):
            file.write(content)
            file.flush()

    def finish(self) -> None:
        """Write the index, and give all files their names."""
        lengths = np.fromfile(self._lengths, "<i4")
        about = self.about | {"documents": len(lengths), "tokens": int(lengths.sum(dtype=np.int64))}
        _aside(self.idx, lambda file: write_index(file, self.dtype, lengths))
        self._bin.replace(self.bin)
        _aside(self.json, lambda file: file.write(json.dumps(about, indent=1).encode()))
        for path in (self._about, self._lengths):
            path.unlink()

    def summary(self, went_on: int, report: LoadReport) -> TokenFiles:
        """What is there now."""
        about = json.loads(self.json.read_text())
        size = self.bin.stat().st_size + self.idx.stat().st_size
        return TokenFiles(self.prefix, about["documents"], about["tokens"], size, went_on, report)

    def _same(self, file: Path) -> bool:
        """Whether a file tells of the same source, tokenizer and options."""
        try:
            stored = json.loads(file.read_text())
        except (OSError, ValueError):
            return False
        return isinstance(stored, dict) and stored | self.about == stored


def about_file(prefix: Path) -> Path:
    """The file beside token files that says how they were written."""
    return prefix.with_name(f"{prefix.name}.json")


def _aside(path: Path, write: Callable[[BinaryIO], object]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb") as file:
        write(file)
    partial.replace(path)
