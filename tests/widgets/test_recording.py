"""A recording plays the same records, in time."""

import gzip
import os
import shutil

import pytest
from run_folders import change_info, write_lines, write_run

from aligner_lib.errors import UserError
from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import RunFolder
from cluster.processes import identity
from widgets.recordings.recording_file import record, shipped
from widgets.recordings.replay import Recording
from widgets.runs.series import Series
from widgets.runs.waiting import RunLost, verdict


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time in its only entry."""
    now = [100.0]
    monkeypatch.setattr("widgets.recordings.replay.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def run(healthy, tmp_path):
    """A copy of the healthy run with two seconds a step."""
    shutil.copytree(healthy, tmp_path / "run")
    records = RunFolder(healthy).metrics()
    timed = [record | {"time": 1000.0 + 2 * i} for i, record in enumerate(records)]
    write_lines(tmp_path / "run" / "metrics.jsonl", timed)
    return tmp_path / "run"


def at_its_end(source) -> Recording:
    return Recording(source, speed=float("inf"))


def test_records_come_when_their_time_has_come_until_it_is_stopped_and_a_restart_begins_anew(run, clock):
    recording = Recording(run, speed=1.0)
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
    recording.request_stop()
    clock[0] += 1000
    series.poll()
    assert len(series) == 16 and recording.status == "stopped" and recording.is_over
    assert recording.info["message"] == "the recording was stopped at step 16; it goes on to step 60"
    recording.restart()
    series.poll()
    assert recording.status == "running" and len(series) == 1 and series.generation == 1
    clock[0] += 1000
    series.poll()
    assert len(series) == 60 and recording.status == "finished"


@pytest.mark.parametrize(
    ("times", "positions"),
    [
        ([10, 12, 14, 3600, 3602], [0, 2, 4, 14, 16]),  # resumed after a pause: five times two seconds
        ([10, 12, 5, 7, 9], [0, 2, 2, 4, 6]),  # the clock was set back
        ([10, 11, 3600], [0, 1, 6]),
        ([], []),
    ],
)
def test_a_pause_is_shortened_and_a_clock_that_was_set_back_stops_nothing(times, positions, tmp_path, clock):
    records = [{"step": step, "time": float(time)} for step, time in enumerate(times)]
    recording = Recording(write_run(tmp_path / "run", records), speed=1.0)
    assert recording.length == (positions or [0])[-1]
    start = clock[0]
    for position in positions:
        clock[0] = start + position
        assert len(recording.metrics()) == sum(other <= position for other in positions)
    assert recording.is_over and recording.info["heartbeat"]["time"] == (times or [0])[-1]


def test_a_record_of_a_run_is_one_small_file_and_plays(healthy, tmp_path):
    packed = record(healthy, tmp_path / "copy", name="copy", rollouts_a_step=2)
    assert packed == tmp_path / "copy.json.gz"
    original = sum(path.stat().st_size for path in healthy.glob("*.json*"))
    assert packed.stat().st_size < original / 3
    recording = at_its_end(packed)
    assert recording.is_over and recording.status == "finished" and recording.name == "copy"
    assert len(recording.rollouts()) == 120
    assert recording.metrics() == RunFolder(healthy).metrics()


def test_a_recording_of_a_lost_run_ends_as_lost(run, tmp_path):
    change_info(run, status="running", identity="an earlier process's", heartbeat={"time": 0.0, "step": 60})
    for source in (run, record(run, tmp_path / "copy")):
        assert at_its_end(source).status == "lost"
        gone = r"its process (\d+|\(recorded\)) is gone and left no message after step 60"
        with pytest.raises(RunLost, match=gone):
            verdict(at_its_end(source))


def test_a_recording_of_a_run_that_still_trains_ends_as_stopped(run):
    change_info(run, status="running", pid=os.getpid(), identity=identity(os.getpid()))
    recording = at_its_end(run)
    assert RunFolder(run).status == "running" and verdict(recording) == "healthy was stopped after step 60."
    assert recording.info["message"] == "the run was not over when it was recorded"


def test_a_recording_may_keep_more_of_its_validations(tmp_path):
    rollouts = [
        {"step": step, "split": split, "prompt": "p", "response": str(i), "reward": 0.0}
        for step, split in ((0, "validation"), (1, "train"), (1, "validation"))
        for i in range(5)
    ]
    run = write_run(tmp_path / "run", [{"step": step, "time": step} for step in (0, 1)], rollouts)

    def kept(**most: int) -> list[tuple[int, str]]:
        packed = at_its_end(record(run, tmp_path / "copy", **most))
        return [(rollout["step"], rollout["split"]) for rollout in packed.rollouts()]

    few = [(0, "validation")] * 2 + [(1, "train")] * 2 + [(1, "validation")] * 2
    assert kept(rollouts_a_step=2) == few
    more = [(0, "validation")] * 5 + [(1, "train")] * 2 + [(1, "validation")] * 5
    assert kept(rollouts_a_step=2, validation_rollouts=5) == more


def test_a_recording_keeps_the_steps_of_resumes_and_not_the_place_where_it_was_made(run, tmp_path):
    config = {"model": {"data": {"train": ["/somewhere/x.jsonl"]}, "lr": 1e-5, "path": "/somewhere"}}
    change_info(run, config=config, host="machine-7", resumed_at=[4])
    packed = record(run, tmp_path / "copy")
    text = gzip.decompress(packed.read_bytes()).decode()
    assert "somewhere" not in text and "machine-7" not in text
    kept = Recording(packed).info
    assert kept["config"] == {"model": {"lr": 1e-5, "path": None}} and kept["resumed_at"] == [4]


def test_a_recording_has_the_alarms_and_limits_of_its_run_unless_others_are_given(tmp_path):
    config = {"exp_manager": {"alarms": {"kl": 2.0}, "save_best": "val_rollouts/rewards"}}
    run = write_run(tmp_path / "run", {"train_rollouts/kl": [0.3] * 4}, kind="ppo", config=config)
    for given, heard, kl in (({}, [], 2.0), ({"limits": Thresholds()}, ["kl"], 0.2)):
        recording = at_its_end(record(run, tmp_path / "copy", **given))
        assert [alarm["name"] for alarm in recording.alarms()] == heard
        kept = {"alarms": {"kl": kl}, "save_best": "val_rollouts/rewards"}
        assert recording.info["config"]["exp_manager"] == kept


@pytest.mark.parametrize("losses", [[1.0, 2.0], []], ids=["with records", "without"])
def test_a_recording_of_a_stopped_run_does_not_go_on(losses, tmp_path):
    run = write_run(tmp_path / "run", {"train/loss": losses}, status="stopped", message="")
    recording = at_its_end(record(run, tmp_path / "copy"))
    assert (recording.info["status"], recording.info["message"]) == ("stopped", "")


def test_a_folder_without_a_run_is_refused_with_the_names_of_the_package(tmp_path):
    words = rf"run\.json is missing.*of the package: {', '.join(shipped())}"
    for read in (Recording, lambda run: record(run, tmp_path / "copy")):
        with pytest.raises(FileNotFoundError, match=words):
            read(tmp_path)


def test_a_recording_is_found_by_the_name_that_record_was_given(run, tmp_path):
    record(run, tmp_path / "copy")
    assert Recording(tmp_path / "copy").path == tmp_path / "copy.json.gz"


def test_a_file_that_is_no_whole_recording_is_refused_with_its_path(run, tmp_path):
    whole = record(run, tmp_path / "copy").read_bytes()
    other = tmp_path / "other.json.gz"
    for content in (whole[:-100], b"text", gzip.compress(b"[1]"), gzip.compress(b"text")):
        other.write_bytes(content)
        with pytest.raises(UserError, match=r"other.json.gz is no recording, or is cut short"):
            Recording(other)
