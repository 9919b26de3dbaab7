"""Lines of data files as records. An error message describes the fault of a record in a few words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path


def numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file and their numbers. Empty lines within the file are kept, empty lines at its end are not."""
    empty: list[tuple[int, str]] = []
    with open(file, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for numbered in enumerate(lines, 1):
            if not numbered[1].strip():
                empty.append(numbered)
                continue
            yield from empty
            empty.clear()
            yield numbered


def in_doubt(lines: list[str]) -> set[int]:
    """Indices of the lines whose pairing is uncertain after an empty line.

    An empty line may stand for a lost record, or may merely separate two pairs. Lines between empty lines are uncertain when
    both readings are possible and pair the lines differently.
    """
    unsure: set[int] = set()
    for is_text, run in groupby(range(len(lines)), key=lambda index: bool(lines[index].strip())):
        run = list(run)
        if is_text and run[0] % 2 == 1 and len(run) % 2 == 0:
            unsure.update(run)
    return unsure


def parse(line: str) -> dict:
    """Parse the record of a line. Raises ValueError for a line without a record; the message names the fault."""
    if not line.strip():
        raise ValueError("empty line")
    try:
        line.encode("utf-8")
        record = json.loads(line)
    except UnicodeEncodeError:
        raise ValueError("not UTF-8") from None
    # ValueError also covers integers beyond Python's digit limit, RecursionError a thousand nested brackets.
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def first_record(files: Iterable[Path]) -> dict:
    """The record of the first line that holds one; an empty record if no line does."""
    for file in files:
        if file.is_file():
            for _, line in numbered_lines(file):
                with suppress(ValueError):  # the loaders say what is wrong with the line
                    return parse(line)
    return {}


def text_of(record: dict, key: str) -> str:
    """The text of a record under a key. Raises ValueError; the message names the fault."""
    if key not in record:
        raise ValueError(f"no key {key!r}")
    if not isinstance(record[key], str):
        raise ValueError(f"{key!r} is not a text")
    try:
        record[key].encode()
    except UnicodeEncodeError:  # JSON accepts \ud83d alone; the tokenizer would raise a TypeError
        raise ValueError(f"{key!r} contains half a surrogate pair") from None
    return record[key]
