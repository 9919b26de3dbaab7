"""JSON Lines files that are torn, cut, replaced or half on the disk."""

import json
import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.errors import UserError
from aligner_lib.run_folder import jsonl
from aligner_lib.run_folder.jsonl import JsonlReader, JsonlWriter, truncate_after


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def line(step: int, **more) -> bytes:
    return json.dumps({"step": step, **more}).encode() + b"\n"


def steps(records: list[dict]) -> list[int]:
    return [record["step"] for record in records]


def test_a_record_is_read_once(path):
    reader = JsonlReader(path)
    assert reader.poll() == []  # there is no file yet
    writer = JsonlWriter(path)
    for record in ({"step": 1, "text": "Grüße\n\u2028"}, {"step": 2}, {"half of a pair": "\ud83d"}):
        writer.append(record)
        assert (reader.poll(), reader.poll()) == ([record], [])
    writer.close()


@pytest.mark.parametrize("max_bytes", [None, 1, 20])
def test_any_way_of_arriving_gives_the_same_records(tmp_path, max_bytes):
    """Bytes come in pieces cut anywhere, within a line and within a character."""
    records = [{"text": "Grüße\n", "list": [1, None]}, {}, {"step": 2, "text": "\u2028"}]
    content = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
    for cut in range(len(content)):
        path, read = tmp_path / f"{cut}.jsonl", []
        reader = JsonlReader(path)
        for piece in (content[:cut], content[cut : cut + 3], content[cut + 3 :]):
            with path.open("ab") as file:
                file.write(piece)
            while new := reader.poll(max_bytes):
                read += new
        assert read == records and (reader.restarts, reader.skipped) == (0, 0)


def test_a_line_without_end_is_read_up_to_a_limit(path):
    path.write_bytes(line(1) + b"\0" * 100)
    reader = JsonlReader(path, longest_line=64)
    assert steps(reader.poll(16)) == [1]
    with pytest.raises(UserError, match=r"metrics.jsonl has a line of over .* MiB: remove"):
        reader.poll(16)


@pytest.mark.parametrize("block_bytes", [1, 4, 1 << 16])
@pytest.mark.parametrize("whole", [b"", line(1), line(0) + line(1)])
def test_a_writer_drops_the_torn_line_that_a_killed_writer_left(path, monkeypatch, whole, block_bytes):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", block_bytes)
    for torn in (b'{"step": 2, "lo', b""):
        path.write_bytes(whole + torn)
        writer = JsonlWriter(path)
        writer.append({"step": 2})
        writer.close()
        assert path.read_bytes() == whole + line(2)


def test_a_writer_reads_only_the_end_of_a_large_file(path):
    with path.open("wb") as file:
        file.truncate(1 << 30)  # without a block on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"x" * 9)
    tracemalloc.start()
    JsonlWriter(path).close()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert path.stat().st_size == (1 << 30) + 1


def test_nuls_are_blocks_not_yet_written(path):
    path.write_bytes(line(1) + b"\0" * 7 + line(2) + b"\0\0\n" + line(3, text="x" * 100))
    reader = JsonlReader(path)
    assert steps(reader.poll()) == [1, 2, 3]
    assert reader.skipped == 0


def test_a_line_longer_than_the_bound_is_read_without_the_rest_of_the_file(path):
    path.write_bytes(line(1, text="x" * 90) + b"".join(map(line, range(2, 99))))
    reader = JsonlReader(path)
    assert steps(reader.poll(max_bytes=60)) == [1]
    assert steps(reader.poll(max_bytes=60)) == [2, 3, 4, 5, 6]


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize("bad", [b"no json", b"[1, 2]", b"\xff", b'{"step": 1}}', b'{"a":1},{"b":2}', DEEP])
def test_a_line_that_is_no_object_is_skipped_and_counted(path, bad):
    path.write_bytes(line(1) + bad + b"\n" + line(2))
    reader = JsonlReader(path)
    assert steps(reader.poll()) == [1, 2] and reader.skipped == 1


def test_a_file_that_shrank_or_was_replaced_is_read_again(path):
    path.write_bytes(b"no record\n" + line(2) + line(3))
    reader = JsonlReader(path)
    reader.poll()
    os.truncate(path, len(b"no record\n" + line(2)))
    assert steps(reader.poll()) == [2]
    assert (reader.restarts, reader.skipped) == (1, 1), "a line that is read again counts once"
    # it also shrinks and grows past its old end between two readings
    path.write_bytes(line(1) + line(2, loss=0.5) + line(3))
    reader = JsonlReader(path)
    reader.poll()
    path.write_bytes(line(1) + line(2, loss=0.25) + line(3) + line(4))
    assert steps(reader.poll()) == [1, 2, 3, 4] and reader.restarts == 1
    other = path.with_suffix(".new")
    other.write_bytes(b"".join(map(line, range(7, 14))))
    other.rename(path)
    assert steps(reader.poll()) == list(range(7, 14)) and reader.restarts == 2


ODD = [b"no json\n", b"\0\0\0\n", b"[7]\n", b"{}\n", b'{"step": "x"}\n', b"\xff\n"]
TORN = st.binary(max_size=6).filter(lambda content: b"\n" not in content)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9) | st.sampled_from(ODD), max_size=12), st.integers(-1, 10), TORN)
def test_a_resumed_run_keeps_the_lines_up_to_its_checkpoint(tmp_path_factory, parts, step, torn):
    """Damaged lines hinder no resume: those between the kept records stay, and are counted."""
    path = tmp_path_factory.mktemp("jsonl") / "records.jsonl"
    numbers = iter(sorted(part for part in parts if isinstance(part, int)))
    lines = [part if isinstance(part, bytes) else line(next(numbers)) for part in parts]
    path.write_bytes(b"".join(lines) + torn)
    kept = [text for text in lines if text not in ODD and json.loads(text)["step"] <= step]
    between = lines[: len(lines) - lines[::-1].index(kept[-1])] if kept else []
    odd = [text for text in between if text in ODD]
    assert truncate_after(path, step) == len([text for text in odd if text.strip(b"\0\n")])
    assert path.read_bytes() == b"".join(between)
