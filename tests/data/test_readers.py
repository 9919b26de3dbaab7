"""The same records from .jsonl, .jsonl.gz and .parquet; damage to a file as a whole is one clear error."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import readers
from data.hh import format_hh
from data.readers import RawRecord, read_records
from data.report import DataError, Reason, Skip
from data.sources import SAMPLES

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


def test_hh_output_is_the_same_from_every_kind(tmp_path):
    rows = [json.loads(line) for line in (SAMPLES / "hh-sample-test.jsonl").read_text().splitlines()]
    outputs = []
    for suffix in readers.SUFFIXES:
        format_hh(write(tmp_path / f"raw{suffix}", rows), tmp_path / suffix[1:], "test")
        outputs.append((tmp_path / suffix[1:] / "test_comparisons.jsonl").read_bytes())
    assert len(set(outputs)) == 1 and outputs[0].count(b"\n") == 2 * len(rows) - 1


def test_bad_utf8_in_parquet_is_a_skip(tmp_path):
    buffers = pyarrow.array([b"\xff\xfe", b"fine"], pyarrow.binary()).buffers()
    bad = pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    path = tmp_path / "raw.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": bad}), path)
    first, second = read_records([path])
    assert isinstance(first, Skip) and (first.line, first.reason) == (1, Reason.BAD_UTF8)
    assert second == RawRecord(str(path), 2, {"a": "fine"})


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n\r\n')
    assert [record.value for record in read_records([path])] == [{"a": 1}, {"a": 2}]


def test_empty_lines_count_only_before_text(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_bytes(b'\n{"a": 1}\n\n \n{"a": 2}\n\n\n')
    reasons = {item.line: getattr(item, "reason", None) for item in read_records([path])}
    assert reasons == {1: Reason.NOT_JSON, 2: None, 3: Reason.NOT_JSON, 4: Reason.NOT_JSON, 5: None}


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"no gzip"])
def test_damaged_gzip(tmp_path, damage):
    path = write(tmp_path / "raw.jsonl.gz", ROWS * 50)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        DataError, match=r"raw.jsonl.gz is not a complete gzip file .*download the file again"
    ):
        list(read_records([path]))


@pytest.mark.parametrize("compression", ["snappy", "gzip"])
def test_damaged_parquet(tmp_path, compression):
    path = tmp_path / "raw.parquet"
    path.write_bytes(b"PAR1 is how such files begin, and nothing else fits")
    with pytest.raises(DataError, match=r"raw\.parquet cannot be read as parquet"):
        list(read_records([path]))
    table = pyarrow.Table.from_pylist([{"text": f"row {number}"} for number in range(1000)])
    pyarrow.parquet.write_table(table, path, compression=compression)
    content = bytearray(path.read_bytes())
    content[len(content) // 4 : len(content) // 2] = b"\x5a" * (len(content) // 2 - len(content) // 4)
    path.write_bytes(content)  # the footer, at the end, is whole
    with pytest.raises(DataError, match=r"raw\.parquet cannot be read as parquet .*download the file again"):
        list(read_records([path]))


def test_a_file_that_is_not_there_is_not_called_damaged_and_an_unknown_kind_names_the_known_ones(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_records([tmp_path / "raw.parquet"]))
    with pytest.raises(DataError, match=r"raw\.txt has an unknown ending: .*\.jsonl, \.jsonl\.gz, \.parquet"):
        list(read_records([tmp_path / "raw.txt"]))


@given(st.binary(max_size=200))
def test_any_bytes_give_records_or_skips(content):
    items = list(readers._read_lines(iter(content.splitlines(keepends=True)), "f"))
    assert all(isinstance(item, RawRecord | Skip) for item in items)
    lines = [item.line for item in items]
    assert lines == sorted(set(lines))
