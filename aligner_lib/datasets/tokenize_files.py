"""`aligner data mmap`: the texts of a JSON Lines file as Megatron's token files.

PREFIX_KEY_document.bin and .idx are what Megatron's own tool writes for the same ids; a .json beside them says with
which tokenizer and template they were written. What is done is appended to hidden files, chunk by chunk, and they get
their names when they are complete: a call that is made again goes on where the one before was killed, and the bytes
are the same with any number of workers.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from aligner_lib.datasets.chat_template import (
    ANSWER,
    OWN,
    PLAIN,
    encode_prompt,
    turns_of,
    use_template,
    with_response,
)
from aligner_lib.datasets.indexed_dataset import DTYPES, best_dtype, files_of_prefix, write_index
from aligner_lib.datasets.json_lines import parse, text_of
from aligner_lib.datasets.samples import LoadReport
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError

Line = tuple[int, str]  # its number, from 1


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


class Recipe(NamedTuple):
    """How a line becomes token ids."""

    folder: Path  # the tokenizer's
    template: str  # chat_template.PLAIN or OWN
    key: str
    append_eod: bool


class Encoded(NamedTuple):
    """A chunk of lines."""

    ids: bytes
    lengths: list[int]  # of each line; 0 where it has no text
    problems: list[tuple[int, str]]  # those lines' numbers, and why


def prefix_written(output_prefix: Path, key: str) -> Path:
    """The name that Megatron's tool gives its files."""
    return output_prefix.with_name(f"{output_prefix.name}_{key}_document")


def tokenize_file(
    source: Path,
    output_prefix: Path,
    tokenizer: Tokenizer,
    *,
    key: str = "text",
    append_eod: bool = False,
    workers: int = 1,
    chunk_size: int = 100,
) -> TokenFiles:
    """Write the token files of a JSON Lines file: a document for each line, its `key` as token ids.

    A text that a prompt ends is tokenised as such, one that an answer ends as a pair's (`chat_template`). append_eod: the
    stop token behind each. workers: processes that tokenise; chunk_size: lines that one takes at a time. A line without
    a text is an empty document, and reported: pairs keep their partners.

    Raises UserError where the files are there already and of something else, or for an empty line within the source.
    """
    if not source.exists():
        raise FileNotFoundError(
            f"data file {source} does not exist: `aligner data --help` shows how to make one"
        )
    recipe = Recipe(tokenizer.folder, tokenizer.template or PLAIN, key, append_eod)
    dtype = best_dtype(tokenizer.vocab_size)
    about = {
        "source": _hash(source),
        "tokenizer": tokenizer.hash,
        "chat_template": recipe.template,
        "json_key": key,
        "append_eod": append_eod,
    }
    made = _Unfinished(prefix_written(output_prefix, key), about, dtype)
    made.prefix.parent.mkdir(parents=True, exist_ok=True)
    with made.locked():
        if made.is_complete():
            return made.summary(went_on=made.documents, report=LoadReport(made.documents))
        report = LoadReport()
        with made.opened() as lengths:
            went_on = len(lengths)
            lines = _lines(source)
            for (number, line), length in zip(islice(lines, went_on), lengths.tolist()):
                report.total += 1
                if not length:
                    report.drop(f"{source.name}:{number}", _problem(line, key))
            for encoded in _encoded(_chunks(lines, chunk_size), recipe, dtype, workers):
                made.append(encoded)
                report.total += len(encoded.lengths)
                for number, problem in encoded.problems:
                    report.drop(f"{source.name}:{number}", problem)
        made.finish()
    return made.summary(went_on, report)


# ---- lines to token ids ---------------------------------------------------------------------------------------------


def _lines(source: Path) -> Iterator[Line]:
    """The file's lines; empty ones at its end are none."""
    empty = 0
    with open(source, encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                empty = empty or number
            elif empty:
                raise UserError(
                    f"{source}:{empty} is empty, which leaves open what is a pair behind it: remove the line"
                )
            else:
                yield number, line


def _chunks(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    while chunk := list(islice(lines, size)):
        yield chunk


def _encoded(chunks: Iterable[list[Line]], recipe: Recipe, dtype: int, workers: int) -> Iterator[Encoded]:
    """The chunks in their order. A few more than there are workers are under way at a time."""
    if workers == 1:
        yield from (_encode(chunk, recipe, dtype) for chunk in chunks)
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has a core
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    under_way = deque()
    try:
        for chunk in chunks:
            under_way.append(pool.submit(_encode, chunk, recipe, dtype))
            if len(under_way) > 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            f"one of {workers} workers was killed (is memory short?): run the same again with fewer --workers, it goes on"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _encode(lines: list[Line], recipe: Recipe, dtype: int) -> Encoded:
    tokenizer = _tokenizer(recipe.folder, recipe.template)
    documents, problems = [], []
    for number, line in lines:
        try:
            ids = _document(tokenizer, _usable_text(line, recipe.key))
            documents.append(
                [*ids, tokenizer.eos_id] if recipe.append_eod and ids[-1] != tokenizer.eos_id else ids
            )
        except (ValueError, UserError) as error:
            documents.append([])
            problems.append((number, str(error)))
    ids = np.array([token_id for ids in documents for token_id in ids], dtype=DTYPES[dtype])
    return Encoded(ids.tobytes(), list(map(len, documents)), problems)


def _document(tokenizer: Tokenizer, text: str) -> list[int]:
    if tokenizer.template == OWN and turns_of(text)[-1]["role"] == "assistant":
        before, mark, response = text.rpartition(ANSWER)
        return with_response(tokenizer, before + mark, response)[0]
    return encode_prompt(tokenizer, text)


def _usable_text(line: str, key: str) -> str:
    text = text_of(parse(line), key)
    if not text.strip():
        raise ValueError("empty text")
    return text


def _problem(line: str, key: str) -> str:
    """Why an earlier call made an empty document of this line."""
    try:
        _usable_text(line, key)
    except ValueError as error:
        return str(error)
    return "the chat template refuses it"


@cache
def _tokenizer(folder: Path, template: str) -> Tokenizer:
    return use_template(Tokenizer(folder), template)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


# ---- files that are not finished ------------------------------------------------------------------------------------


class _Unfinished:
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
