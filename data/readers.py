"""Reads raw records from .jsonl, .jsonl.gz and .parquet files one at a time, whatever the file's size."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from data.report import DataError, Reason, Skip

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
PARQUET_BATCH_ROWS = 1024


class RawRecord(NamedTuple):
    """One raw JSON object and its place."""

    file: str
    line: int  # from 1; the row in a parquet file
    value: dict[str, Any]


def read_records(paths: Iterable[Path]) -> Iterator[RawRecord | Skip]:
    """Yield every record of the files in order; a bad record is yielded as a Skip.

    Raises DataError for a file that is damaged as a whole or of an unknown kind.
    """
    for path in paths:
        if path.name.endswith(".parquet"):
            yield from _read_parquet(path)
        elif path.name.endswith(".jsonl.gz"):
            yield from _read_gzip(path)
        elif path.name.endswith(".jsonl"):
            with path.open("rb") as stream:
                yield from _read_lines(stream, str(path))
        else:
            raise DataError(f"{path} is of an unknown kind; raw data files end in {', '.join(SUFFIXES)}")


def _read_gzip(path: Path) -> Iterator[RawRecord | Skip]:
    try:
        # GzipFile iterates in Python; the buffered reader around it iterates in C.
        with gzip.open(path, "rb") as packed, io.BufferedReader(packed, 1 << 20) as stream:
            yield from _read_lines(stream, str(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}); download it again") from error


def _read_lines(stream: BinaryIO, file: str) -> Iterator[RawRecord | Skip]:
    blank_lines: list[int] = []  # an error only when text follows: files may end in empty lines
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.strip():
            blank_lines.append(number)
            continue
        for blank in blank_lines:
            yield Skip(file, blank, Reason.NOT_JSON, "empty line")
        blank_lines.clear()
        yield _parse_line(line, file, number)


def _parse_line(line: bytes, file: str, number: int) -> RawRecord | Skip:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Skip(file, number, Reason.BAD_UTF8, f"byte {error.start + 1} of the line: {error.reason}")
    # ValueError also covers integers beyond Python's digit limit, RecursionError a thousand brackets.
    except (ValueError, RecursionError) as error:
        return Skip(file, number, Reason.NOT_JSON, str(error))
    if not isinstance(value, dict):
        return Skip(file, number, Reason.WRONG_TYPE, f"a JSON {type(value).__name__}, not an object")
    return RawRecord(file, number, value)


def _read_parquet(path: Path) -> Iterator[RawRecord | Skip]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for row in range(batch.num_rows):
                    number += 1
                    yield _parse_row(batch, row, str(path), number)
    except (pyarrow.ArrowException, OSError) as error:
        # Arrow tells of damaged pages with an OSError of its own, without the number of the system's.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path} cannot be read as parquet ({error}); download it again") from error


def _parse_row(batch: Any, row: int, file: str, number: int) -> RawRecord | Skip:
    try:
        value = {name: batch.column(name)[row].as_py() for name in batch.schema.names}
    except UnicodeDecodeError as error:
        return Skip(file, number, Reason.BAD_UTF8, f"byte {error.start + 1} of a column: {error.reason}")
    return RawRecord(file, number, value)
