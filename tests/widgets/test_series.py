"""Files as they are found: torn, full of NULs, cut, replaced. Nothing crashes, nothing is invented."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.reader import RunFolder
from widgets.runs.rollouts import RunRollouts
from widgets.runs.series import Series


def line(step, time=0.0, **metrics):
    return json.dumps({"step": step, "time": time or 1000.0 + step, **metrics}) + "\n"


def series_of(path):
    series = Series(RunFolder(path))
    series.poll()
    return series


def test_a_torn_last_line_comes_when_it_is_whole(tmp_path):
    assert len(series_of(tmp_path / "not there")) == 0
    file = tmp_path / "metrics.jsonl"
    whole = line(1, a=1.0) + line(2, a=2.0)
    file.write_text(whole[:-9])
    series = series_of(tmp_path)
    assert list(series.steps) == [1]
    file.write_text(whole)
    series.poll()
    assert list(series.steps) == [1, 2]


def test_lines_that_are_no_records_and_values_that_are_no_numbers_are_skipped(tmp_path):
    odd = ["\0\0\0\n", "not json\n", "[1, 2]\n", '"text"\n', "{}\n", '{"step": true, "time": 1}\n', "\n"]
    (tmp_path / "metrics.jsonl").write_text(line(1, a=1.0) + "".join(odd) + "\0\0" + line(2, a=2.0))
    series = series_of(tmp_path)
    assert list(series.steps) == [1, 2]
    assert series.column("a")[1].tolist() == [1.0, 2.0]
    assert series.skipped == 5, "blank lines hold nothing to count"
    (tmp_path / "metrics.jsonl").write_text(line(1, a="x", b=True, c=None, d=[1], e=3))
    assert series_of(tmp_path).metrics == ["e"]


def test_a_file_that_was_cut_or_replaced_starts_anew(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(line(step, a=1.0) for step in range(1, 9)))
    series = series_of(tmp_path)
    file.write_text(line(1, a=5.0))
    series.poll()
    assert series.column("a")[1].tolist() == [5.0]
    other = tmp_path / "other"
    other.write_text("".join(line(step, a=6.0) for step in range(1, 30)))
    other.rename(file)
    series.poll()
    assert series.column("a")[1].tolist() == [6.0] * 29
    with open(file, "r+") as same:  # cut, and grown past its old end, between two looks
        same.truncate(0)
        same.write("".join(line(step, a=2.0) for step in range(1, 40)))
    series.poll()
    assert series.column("a")[1].tolist() == [2.0] * 39


def test_a_run_that_was_begun_anew_shows_nothing_of_the_old_attempt_before_its_first_record(tmp_path):
    rollout = json.dumps({"step": 1, "response": "r"}) + "\n"
    for name, text in {"metrics": line(1, a=1.0), "rollouts": rollout}.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    series, rollouts = series_of(tmp_path), RunRollouts(RunFolder(tmp_path))
    rollouts.poll()
    assert (len(series), len(rollouts.records)) == (1, 1)
    for name in ("metrics", "rollouts"):
        (tmp_path / f"{name}.jsonl").write_text("")
    assert series.poll() and rollouts.poll()
    assert (len(series), len(rollouts.records), series.generation) == (0, 0, 1)


def test_steps_that_go_back_replace_what_was_there(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(line(s, a=float(s)) for s in (1, 2, 3, 4, 3, 4, 5)))
    series = series_of(tmp_path)
    assert list(series.steps) == [1, 2, 3, 4, 5] and series.generation > 0
    assert series.column("a")[0].tolist() == [0, 1, 2, 3, 4]


def test_a_clock_that_jumps_moves_no_point_to_the_left(tmp_path):
    times = [100.0, 110.0, 50.0, 120.0]
    (tmp_path / "metrics.jsonl").write_text("".join(line(i + 1, time, a=1.0) for i, time in enumerate(times)))
    assert series_of(tmp_path).axis("time").tolist() == [0.0, 10.0, 10.0, 20.0]


def test_metrics_logged_now_and_then_keep_their_rows(tmp_path):
    text = line(1, a=1.0) + line(2, a=2.0, v=9.0) + line(2, w=4.0)
    (tmp_path / "metrics.jsonl").write_text(text)
    series = series_of(tmp_path)
    assert series.column("v")[0].tolist() == [1]
    rows = series.table(["a", "v", "w"], 0, 9)
    logged = [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0, "v": 9.0}, {"step": 2, "w": 4.0}]
    assert [{k: v for k, v in row.items() if k != "time"} for row in rows] == logged


HUGE = "1" + "0" * 400
NO_PLACE = [f'{{"step": {step}, "time": 1, "a": 9}}' for step in ("NaN", "-Infinity", 10**20, HUGE, "3.5")]
NO_PLACE += [
    f'{{"step": 2, "time": {time}, "a": 9}}' for time in ("NaN", "Infinity", "1e308", "-" + HUGE, "true")
]


@pytest.mark.parametrize("odd", NO_PLACE)
def test_a_record_without_a_place_on_the_axes_is_skipped_and_counted(tmp_path, odd):
    (tmp_path / "metrics.jsonl").write_text(line(1, a=1.0) + odd + "\n" + line(3, a=3.0))
    series = series_of(tmp_path)
    assert (list(series.steps), series.skipped) == ([1, 3], 1)
    assert [series.axis(name).tolist() for name in ("step", "time")] == [[1.0, 3.0], [0.0, 2.0]]
    assert series.column("a")[1].tolist() == [1.0, 3.0]


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_beyond_every_float_is_infinite(tmp_path, sign):
    odd = f'{{"step": 2, "time": 1002, "a": {sign}{HUGE}, "b": {10**20}}}\n'
    (tmp_path / "metrics.jsonl").write_text(line(1, a=1) + odd + line(3, a=3))
    series = series_of(tmp_path)
    assert list(series.steps) == [1, 2, 3]
    assert series.column("a")[1].tolist() == [1.0, 3.0]
    assert series.not_finite == {"a": [2]}
    assert series.column("b")[1].tolist() == [1e20]


anything = st.sampled_from(
    ["NaN", "Infinity", "-Infinity", HUGE, f"-{HUGE}", "1e400", str(10**20), "true", "null"]
)
numbers = anything | st.integers(-5, 50).map(str) | st.floats().map(json.dumps)
odd_records = st.builds('{{"step": {}, "time": {}, "a": {}}}\n'.format, numbers, numbers, numbers)
pieces = st.one_of(
    st.integers(1, 50).map(lambda step: line(step, a=step / 2).encode()),
    odd_records.map(str.encode),
    st.binary(max_size=20),
    st.sampled_from([b"\n", b"\0", b'{"step": 1', b"NaN\n", b'{"step": 3, "time": 1, "a": NaN}\n']),
    st.sampled_from([b"[" * 3000 + b"\n", b'{"a":' * 20_000 + b"\n"]),
)


@settings(max_examples=60)
@given(st.lists(pieces, max_size=12), st.integers(1, 200))
def test_any_bytes_read_in_any_portions_give_the_records_of_their_lines(tmp_path_factory, parts, portion):
    path = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    data = b"".join(parts)
    path.write_bytes(data)
    reader, found = JsonlReader(path), []
    while records := reader.poll(portion):
        found += records
    while reader.offset < data.rfind(b"\n") + 1:  # portions without a record
        before = reader.offset
        found += reader.poll(portion)
        assert reader.offset > before
    assert len(found) == len(expected_records(data))
    series = Series(RunFolder(path.parent))
    series.poll()
    for values in (series.column("a")[1], *map(series.axis, ("step", "time", "tokens"))):
        assert all(map(math.isfinite, values))
    assert len(series.table(["a"], 0, 99)) == len(series) <= len(found)


def expected_records(data: bytes) -> list[dict]:
    records = []
    for text in data[: data.rfind(b"\n") + 1].split(b"\n"):
        try:
            record = json.loads(text.strip(b"\0 \r\t"))
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
