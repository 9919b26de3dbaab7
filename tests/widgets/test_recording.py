"""A recording plays the same records, in time."""

import pytest

from aligner_lib.runs import RunFolder
from widgets.recording import Recording, record
from widgets.series import Series


@pytest.fixture
def recording(healthy, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("widgets.recording.time.monotonic", lambda: clock[0])
    recording = Recording(healthy, speed=1.0)
    for i, one in enumerate(recording._records):
        one["time"] = 1000.0 + 2 * i  # two seconds a step
    recording._start, recording._end = 1000.0, 1000.0 + 2 * 59
    return recording, clock


def test_records_come_when_their_time_has_come(recording):
    recording, clock = recording
    series = Series(recording)
    series.poll()
    assert len(series) == 1 and recording.status == "running"
    clock[0] += 10
    series.poll()
    assert len(series) == 6
    recording.speed = 10
    clock[0] += 2
    series.poll()
    assert len(series) == 16
    clock[0] += 1000
    series.poll()
    assert len(series) == 60 and recording.status == "finished"


def test_pause_and_restart(recording):
    recording, clock = recording
    series = Series(recording)
    series.poll()
    clock[0] += 10
    recording.pause()
    clock[0] += 100
    assert recording.position == 10
    recording.restart()
    series.poll()
    assert len(series) == 1 and series.generation == 1


def test_a_record_of_a_run_is_smaller_and_plays(healthy, tmp_path):
    copy = record(healthy, tmp_path / "copy", rollouts_a_step=2)
    assert len(RunFolder(copy).rollouts()) == 120
    recording = Recording(copy, speed=float("inf"))
    assert recording.is_over and recording.status == "finished"


def test_no_recording_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no run\.json"):
        Recording(tmp_path)
