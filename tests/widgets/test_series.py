"""Files as they are found: torn, full of NULs, cut, replaced. Nothing crashes, nothing is invented.

tests/unit/test_jsonl.py has the reader of lines alone.
"""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.run_folder.reader import RunFolder
from widgets.runs.progress import tokens_a_second
from widgets.runs.rollouts import RunRollouts
from widgets.runs.series import Series


def line(step, time=0.0, **metrics):
    return json.dumps({"step": step, "time": time or 1000.0 + step, **metrics}) + "\n"


def series_of(path, *lines: str) -> Series:
    """The series of the lines in a run's metrics.jsonl."""
    if lines:
        (path / "metrics.jsonl").write_text("".join(lines))
    series = Series(RunFolder(path))
    series.poll()
    return series


def test_a_torn_last_line_comes_when_it_is_whole(tmp_path):
    assert len(series_of(tmp_path / "not there")) == 0
    whole = line(1, a=1.0) + line(2, a=2.0)
    series = series_of(tmp_path, whole[:-9])
    assert list(series.steps) == [1]
    (tmp_path / "metrics.jsonl").write_text(whole)
    series.poll()
    assert list(series.steps) == [1, 2]


def test_lines_that_are_no_records_and_values_that_are_no_numbers_are_skipped(tmp_path):
    odd = ["\0\0\0\n", "not json\n", "[1, 2]\n", '"text"\n', "{}\n", '{"step": true, "time": 1}\n', "\n"]
    series = series_of(tmp_path, line(1, a=1.0), *odd, "\0\0", line(2, a=2.0))
    assert list(series.steps) == [1, 2]
    assert series.column("a")[1].tolist() == [1.0, 2.0]
    assert series.skipped == 5, "blank lines hold nothing to count"
    assert series_of(tmp_path, line(1, a="x", b=True, c=None, d=[1], e=3)).metrics == ["e"]


def test_a_run_that_was_begun_anew_shows_nothing_of_the_old_attempt_before_its_first_record(tmp_path):
    (tmp_path / "rollouts.jsonl").write_text(json.dumps({"step": 1, "response": "r"}) + "\n")
    series, rollouts = series_of(tmp_path, line(1, a=1.0)), RunRollouts(RunFolder(tmp_path))
    rollouts.poll()
    assert (len(series), len(rollouts.records)) == (1, 1)
    for name in ("metrics", "rollouts"):
        (tmp_path / f"{name}.jsonl").write_text("")
    assert series.poll() and rollouts.poll()
    assert (len(series), len(rollouts.records), series.generation) == (0, 0, 1)


def test_steps_that_go_back_replace_what_was_there(tmp_path):
    series = series_of(tmp_path, *(line(step, a=float(step)) for step in (1, 2, 3, 4, 3, 4, 5)))
    assert list(series.steps) == [1, 2, 3, 4, 5] and series.generation > 0
    assert series.column("a")[0].tolist() == [0, 1, 2, 3, 4]


def test_a_clock_that_jumps_moves_no_point_to_the_left(tmp_path):
    times = [100.0, 110.0, 50.0, 120.0]
    series = series_of(tmp_path, *(line(step, time, a=1.0) for step, time in enumerate(times, 1)))
    assert series.axis("time").tolist() == [0.0, 10.0, 10.0, 20.0]


def test_the_pause_before_a_resume_is_no_part_of_the_tokens_per_second(tmp_path):
    times = [1.0, 2.0, 3.0, 40_003.0, 40_004.0]
    series = series_of(tmp_path, *(line(i, time, **{"train/tokens": 10}) for i, time in enumerate(times)))
    assert tokens_a_second(series) == 10


def test_metrics_logged_now_and_then_keep_their_rows(tmp_path):
    logged = [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0, "v": 9.0}, {"step": 2, "w": 4.0}]
    series = series_of(tmp_path, *(line(**record) for record in logged))
    assert series.column("v")[0].tolist() == [1]
    rows = series.table(["a", "v", "w"], 0, 9)
    assert [{k: v for k, v in row.items() if k != "time"} for row in rows] == logged


HUGE = "1" + "0" * 400
NO_PLACE = [f'{{"step": {step}, "time": 1, "a": 9}}' for step in ("NaN", 10**20, HUGE, "3.5")]
NO_PLACE += [f'{{"step": 2, "time": {time}, "a": 9}}' for time in ("Infinity", "1e308", "-" + HUGE, "true")]


@pytest.mark.parametrize("odd", NO_PLACE)
def test_a_record_without_a_place_on_the_axes_is_skipped_and_counted(tmp_path, odd):
    series = series_of(tmp_path, line(1, a=1.0), odd + "\n", line(3, a=3.0))
    assert (list(series.steps), series.skipped) == ([1, 3], 1)
    assert [series.axis(name).tolist() for name in ("step", "time")] == [[1.0, 3.0], [0.0, 2.0]]
    assert series.column("a")[1].tolist() == [1.0, 3.0]


odd_numbers = ["NaN", "Infinity", "-Infinity", HUGE, f"-{HUGE}", "1e400", str(10**20), "true", "null"]
numbers = st.sampled_from(odd_numbers) | st.integers(-5, 50).map(str) | st.floats().map(json.dumps)
odd_records = st.builds('{{"step": {}, "time": {}, "a": {}}}\n'.format, numbers, numbers, numbers)
pieces = st.one_of(
    st.integers(1, 50).map(lambda step: line(step, a=step / 2).encode()),
    odd_records.map(str.encode),
    st.binary(max_size=20),
    st.sampled_from([b"\n", b"\0", b'{"step": 1', b"NaN\n", b'{"step": 3, "time": 1, "a": NaN}\n']),
)


@settings(max_examples=60)
@given(st.lists(pieces, max_size=12))
def test_any_bytes_give_finite_values_with_a_place_on_every_axis(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    path.write_bytes(b"".join(parts))
    series = series_of(path.parent)
    for values in (series.column("a")[1], *map(series.axis, ("step", "time", "tokens"))):
        assert all(map(math.isfinite, values))
    assert len(series.table(["a"], 0, 99)) == len(series)
