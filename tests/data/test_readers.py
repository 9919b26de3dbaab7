"""The same records from .jsonl, .jsonl.gz and .parquet; damage to a file as a whole is one clear error."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from data import readers
from data.readers import RawRecord, read_records
from data.report import DataError, Reason, Skip

ROWS = [{"a": "x", "b": "é😀"}, {"a": "", "b": None}, {"a": "\u2028\n", "b": "y"}]


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("suffix", readers.SUFFIXES)
def test_every_kind_gives_the_same_records(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(readers, "PARQUET_BATCH_ROWS", 2)
    path = write(tmp_path / f"raw{suffix}", ROWS)
    assert list(read_records([path])) == [RawRecord(str(path), line, row) for line, row in enumerate(ROWS, 1)]


def test_bad_utf8_in_parquet_is_a_skip(tmp_path):
    buffers = pyarrow.array([b"\xff\xfe", b"fine"], pyarrow.binary()).buffers()
    bad = pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    path = tmp_path / "raw.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": bad}), path)
    first, second = read_records([path])
    assert isinstance(first, Skip) and (first.line, first.reason) == (1, Reason.BAD_UTF8)
    assert second == RawRecord(str(path), 2, {"a": "fine"})


@pytest.mark.parametrize("kind", [pyarrow.timestamp("us"), pyarrow.date32()])
def test_a_time_that_python_cannot_hold_costs_no_record(tmp_path, kind):
    path, days = tmp_path / "raw.parquet", pyarrow.array([1, 2 ** (kind.bit_width - 2)], kind)
    pyarrow.parquet.write_table(pyarrow.table({"a": ["x", "y"], "day": days}), path)
    assert [record.value["a"] for record in read_records([path])] == ["x", "y"]


@pytest.mark.parametrize("name", ["raw.parquet", "raw.arrow"])
def test_two_columns_with_one_name_are_refused(tmp_path, name):
    table = pyarrow.table([["x"], ["y"], ["z"]], names=["a", "b", "a"])
    with (
        pyarrow.OSFile(str(tmp_path / name), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as stream,
    ):
        stream.write_table(table)
    if name == "raw.parquet":
        pyarrow.parquet.write_table(table, tmp_path / name)
    with pytest.raises(DataError, match=f"{name} has two columns with the name a: rename or remove one"):
        list(read_records([tmp_path / name]))


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n\r\n')
    assert [record.value for record in read_records([path])] == [{"a": 1}, {"a": 2}]


def test_blank_lines_are_no_records_and_no_damage(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b'\n{"a": 1}\n\n \n{"a": 2}\n\n\n')
    assert [(record.line, record.value) for record in read_records([path])] == [(2, {"a": 1}), (5, {"a": 2})]


def spoilt_in_the_middle(data: bytes) -> bytes:
    quarter = len(data) // 4  # a parquet file's footer, at the end, stays whole
    return data[:quarter] + b"\x5a" * quarter + data[2 * quarter :]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("raw.jsonl.gz", lambda data: data[:-20], "is not a complete gzip file"),
        ("raw.jsonl.gz", lambda data: b"no gzip", "is not a complete gzip file"),
        ("raw.parquet", lambda data: b"PAR1 is how such files begin", "cannot be read as parquet"),
        ("raw.parquet", spoilt_in_the_middle, "cannot be read as parquet"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, damage, message):
    path = write(tmp_path / name, [{"text": f"row {number}"} for number in range(1000)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"{name} {message} .*download the file again"):
        list(read_records([path]))


def test_a_file_that_is_not_there_is_not_called_damaged_and_an_unknown_kind_names_the_known_ones(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_records([tmp_path / "raw.parquet"]))
    with pytest.raises(DataError, match=r"raw\.txt has an unknown ending: .*\.jsonl, \.jsonl\.gz, \.parquet"):
        list(read_records([tmp_path / "raw.txt"]))
