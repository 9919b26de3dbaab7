"""Reads raw records from files one at a time, so that a file of any size fits in memory."""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, TypeVar

from data.report import DataError, Reason, Report, Skip, Unusable

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
OWN_SUFFIXES = (*SUFFIXES, ".json", ".csv", ".tsv", ".arrow")  # of files of your own
ABOUT_DATA = frozenset({"dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json"})
CHUNK_CHARACTERS = 1 << 16
PARQUET_BATCH_ROWS = 1024
Sample = TypeVar("Sample")


def is_about_data(name: str) -> bool:
    """Whether a file of this name describes a data set and has no records."""
    return name.lower() in ABOUT_DATA


class RawRecord(NamedTuple):
    """A raw JSON object and its place."""

    file: str
    line: int  # from 1; the row in a parquet file
    value: dict[str, Any]


def read_records(paths: Iterable[Path]) -> Iterator[RawRecord | Skip]:
    """Yield every record of the files in order. A bad record is yielded as a Skip.

    Raises DataError for a file that is damaged as a whole or of an unknown kind.
    """
    for path in paths:
        name = path.name.lower()
        if name.endswith(".parquet"):
            yield from _read_parquet(path)
        elif name.endswith(".jsonl.gz"):
            yield from _read_gzip(path)
        elif name.endswith((".jsonl", ".json")):
            yield from _read_json(path)
        elif name.endswith((".csv", ".tsv")):
            yield from _read_csv(path)
        elif name.endswith(".arrow"):
            yield from _read_arrow(path)
        else:
            raise DataError(f"{path} has an unknown ending: raw data files end in {', '.join(OWN_SUFFIXES)}")


def parsed(
    records: Iterable[RawRecord | Skip], parse: Callable[[RawRecord], Sample], report: Report
) -> Iterator[tuple[RawRecord, Sample]]:
    """Yield each usable record with its parsed sample. The report counts the records that are bad, or for which `parse` raises
    Unusable."""
    for record in records:
        if isinstance(record, Skip):
            report.skip(record)
            continue
        try:
            sample = parse(record)
        except Unusable as error:
            report.skip(Skip(record.file, record.line, error.reason, error.detail))
            continue
        yield record, sample


def _read_gzip(path: Path) -> Iterator[RawRecord | Skip]:
    try:
        # GzipFile iterates in Python; the buffered reader around it iterates in C.
        with gzip.open(path, "rb") as packed, io.BufferedReader(packed, 1 << 20) as stream:
            yield from _read_lines(stream, str(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}): download the file again") from error


def _read_lines(stream: BinaryIO, file: str) -> Iterator[RawRecord | Skip]:
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield _parse_line(line, file, number)


def _parse_line(line: bytes, file: str, number: int) -> RawRecord | Skip:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Skip(file, number, Reason.BAD_UTF8, f"byte {error.start + 1} of the line: {error.reason}")
    # ValueError also covers integers beyond Python's digit limit; RecursionError covers a thousand nested brackets.
    except (ValueError, RecursionError) as error:
        return Skip(file, number, Reason.NOT_JSON, str(error))
    if not isinstance(value, dict):
        return Skip(file, number, Reason.WRONG_TYPE, f"a JSON {type(value).__name__}, not an object")
    return RawRecord(file, number, value)


def _read_json(path: Path) -> Iterator[RawRecord | Skip]:
    """The objects of a list, one at a time, or of JSON Lines. Raises DataError for another .json file, and at damaged JSON."""
    decoder, number = json.JSONDecoder(), 0
    if (first := first_character(path)) == "{" or (first != "[" and path.suffix.lower() == ".jsonl"):
        with path.open("rb") as stream:
            yield from _read_lines(stream, str(path))
        return
    if first != "[":
        raise DataError(
            f"{path} is neither a list of records, [{{…}}, {{…}}], nor JSON Lines; give such a file"
        )
    try:
        with path.open(encoding="utf-8-sig") as stream:
            text, more = "", True
            _next_character(stream)
            while True:
                text = text.lstrip().removeprefix(",").lstrip() if number else text.lstrip()
                if text.startswith("]"):
                    if text[1:].strip() or _next_character(stream):
                        raise DataError(
                            f"{path} goes on after its list of {number} records: give each list a file of its own"
                        )
                    return
                try:
                    value, end = decoder.raw_decode(text)
                except json.JSONDecodeError as error:
                    text, more = _longer(text, stream)
                    if not more:
                        raise DataError(
                            f"{path} is not JSON after record {number} ({error.msg}): repair the file"
                        ) from error
                    continue
                except (ValueError, RecursionError) as error:  # as in _parse_line
                    raise DataError(
                        f"{path} is not JSON after record {number} ({error}): repair the file"
                    ) from error
                number, text = number + 1, text[end:]
                wrong = Skip(
                    str(path), number, Reason.WRONG_TYPE, f"a JSON {type(value).__name__}, not an object"
                )
                yield RawRecord(str(path), number, value) if isinstance(value, dict) else wrong
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}): save the file as UTF-8") from error


def first_character(path: Path) -> str:
    """The first character of a text file that is not blank; empty for a file without such a character."""
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        return _next_character(stream)


def _next_character(stream: TextIO) -> str:
    while (character := stream.read(1)).isspace():
        pass
    return character


def _longer(text: str, stream: TextIO) -> tuple[str, bool]:
    """The text with at least as much text appended, and whether there was more text."""
    more = stream.read(max(CHUNK_CHARACTERS, len(text)))
    return text + more, bool(more)


def _read_csv(path: Path) -> Iterator[RawRecord | Skip]:
    """Rows under a header, with tabs between cells (.tsv), or commas, semicolons or tabs (.csv). An empty cell is an empty text.
    A first column without a name is pandas' index, and left out. Raises DataError for text in another column without a name."""
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        try:
            delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(stream)
            rows = csv.reader(stream, strict=True, delimiter=delimiter)
            columns = [name.strip() for name in next(filter(None, rows), [])]
            if columns == ["sep=", ""]:  # Excel's line before the header
                columns = [name.strip() for name in next(filter(None, rows), [])]
            _require_different_names(filter(None, columns), path)
            for cells in filter(None, rows):
                if len(cells) != len(columns):
                    more = "more" if len(cells) > len(columns) else "fewer"
                    detail = f"{more} cells than the header's {len(columns)}"
                    yield Skip(str(path), rows.line_num, Reason.WRONG_CELLS, detail)
                    continue
                if lost := [cell for name, cell in zip(columns[1:], cells[1:]) if cell and not name]:
                    raise DataError(
                        f"{path}:{rows.line_num}: {lost[0]!r:.40} is in a column without a name: name the column in the first line"
                    )
                # a spreadsheet's line end inside of a cell is no part of the text
                named = {name: cell.replace("\r\n", "\n") for name, cell in zip(columns, cells) if name}
                yield RawRecord(str(path), rows.line_num, named)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text ({error}): save the file as UTF-8") from error
        except csv.Error as error:
            raise DataError(
                f"{path} cannot be read as CSV after line {rows.line_num} ({error}): repair the file"
            ) from error


def _require_different_names(columns: Iterable[str], path: Path) -> None:
    """Raises DataError for two columns with the same name."""
    if twice := sorted(name for name, count in Counter(columns).items() if count > 1):
        raise DataError(f"{path} has two columns with the name {', '.join(twice)}: rename or remove one")


def _delimiter(stream: TextIO) -> str:
    """The character between the names of a CSV's header: a comma, or what spreadsheets write in its place, also as Excel's first
    line `sep=;`. The stream stays at its beginning."""
    first = stream.readline()
    stream.seek(0)
    if stated := re.fullmatch(r"sep=(.)\s*", first):
        return stated[1]
    header = re.sub(r'"[^"]*"', "", first)  # a quoted name may contain any of the characters
    return max(",;\t", key=header.count)


def _read_arrow(path: Path) -> Iterator[RawRecord | Skip]:
    """The rows of an Arrow stream, as written by `datasets`."""
    import pyarrow

    number = 0
    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as batches:
            _require_different_names(batches.schema.names, path)
            for batch in batches:
                for row in range(batch.num_rows):
                    number += 1
                    yield _parse_row(batch, row, str(path), number)
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{path} cannot be read as an Arrow stream ({error}): write the file again"
        ) from error


def _read_parquet(path: Path) -> Iterator[RawRecord | Skip]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            _require_different_names(table.schema_arrow.names, path)
            for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for row in range(batch.num_rows):
                    number += 1
                    yield _parse_row(batch, row, str(path), number)
    except (pyarrow.ArrowException, OSError) as error:
        # Arrow reports damaged pages with an OSError of its own, without an errno.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path} cannot be read as parquet ({error}): download the file again") from error


def _parse_row(batch: Any, row: int, file: str, number: int) -> RawRecord | Skip:
    try:
        value = {name: _without_nulls(_as_python(batch.column(name)[row])) for name in batch.schema.names}
    except UnicodeDecodeError as error:
        return Skip(file, number, Reason.BAD_UTF8, f"byte {error.start + 1} of a column: {error.reason}")
    return RawRecord(file, number, value)


def _as_python(scalar: Any) -> Any:
    """The value of Arrow's scalar. Arrow's type replaces a time outside Python's range (nanoseconds, the year 10,000): no form reads
    times, and the column may be ignored."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        return scalar.type


def _without_nulls(value: Any) -> Any:
    """A value without the null fields of its objects: Arrow gives every object of a column the fields of all, so the arguments of
    a tool call would have those of every other tool."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
