"""A recording plays the same records, in time."""

import gzip
import json
import shutil

import pytest
from run_folders import write_run

from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import RunFolder
from widgets.recordings.recording_file import record, shipped
from widgets.recordings.replay import Recording
from widgets.runs.series import Series
from widgets.runs.waiting import RunLost, verdict


@pytest.fixture
def recording(healthy, tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("widgets.recordings.replay.time.monotonic", lambda: clock[0])
    path = tmp_path / "run"
    shutil.copytree(healthy, path)
    records = RunFolder(healthy).metrics()
    timed = [record | {"time": 1000.0 + 2 * i} for i, record in enumerate(records)]  # two seconds a step
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in timed))
    return Recording(path, speed=1.0), clock


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


@pytest.mark.parametrize(
    ("times", "positions"),
    [
        ([10, 12, 14, 3600, 3602], [0, 2, 4, 14, 16]),  # resumed after a pause: five times two seconds
        ([10, 12, 5, 7, 9], [0, 2, 2, 4, 6]),  # the clock was set back
        ([10, 10, 10, 12], [0, 0, 0, 2]),
        ([10, 11, 3600], [0, 1, 6]),
        ([10], [0]),
        ([], []),
    ],
)
def test_a_pause_is_shortened_and_a_clock_that_was_set_back_stops_nothing(
    times, positions, tmp_path, monkeypatch
):
    clock = [0.0]
    monkeypatch.setattr("widgets.recordings.replay.time.monotonic", lambda: clock[0])
    records = [{"step": step, "time": float(time)} for step, time in enumerate(times)]
    run = write_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    recording = Recording(run, speed=1.0)
    assert recording.length == (positions or [0])[-1]
    for position in positions:
        clock[0] = position
        assert len(recording.metrics()) == sum(other <= position for other in positions)
    assert recording.is_over and recording.info["heartbeat"]["time"] == (times or [0])[-1]


def test_a_stop_ends_the_playing_where_it_is_and_a_restart_begins_anew(recording):
    recording, clock = recording
    series = Series(recording)
    series.poll()
    clock[0] += 10
    assert recording.position == 10
    recording.request_stop()
    clock[0] += 1000
    series.poll()
    assert len(series) == 6 and recording.status == "stopped" and recording.is_over
    assert recording.info["message"] == "the recording was stopped at step 6; it goes on to step 60"
    recording.restart()
    series.poll()
    assert recording.status == "running" and len(series) == 1 and series.generation == 1


def test_a_record_of_a_run_is_one_small_file_and_plays(healthy, tmp_path):
    packed = record(healthy, tmp_path / "copy", name="copy", rollouts_a_step=2)
    assert packed == tmp_path / "copy.json.gz"
    original = sum(path.stat().st_size for path in healthy.glob("*.json*"))
    assert packed.stat().st_size < original / 3
    recording = Recording(packed, speed=float("inf"))
    assert recording.is_over and recording.status == "finished" and recording.name == "copy"
    assert len(recording.rollouts()) == 120
    assert recording.metrics() == RunFolder(healthy).metrics()


def test_a_recording_of_a_lost_run_ends_as_lost(healthy, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    long_ago = {"status": "running", "host": "elsewhere", "heartbeat": {"time": 0.0, "step": 60}}
    (run / "run.json").write_text(json.dumps(RunFolder(healthy).info | long_ago))
    for source in (run, record(run, tmp_path / "copy")):
        recording = Recording(source, speed=float("inf"))
        assert recording.status == "lost"
        with pytest.raises(
            RunLost, match=r"its process (\d+|\(recorded\)) is gone and left no message after step 60"
        ):
            verdict(recording)


def test_a_look_at_the_rollouts_goes_through_the_metrics_once(recording, monkeypatch):
    recording, clock = recording
    looks, played = [], Recording._played
    monkeypatch.setattr(Recording, "_played", lambda self: looks.append(self) or played(self))
    clock[0] += recording.position + 1000
    assert len(recording.rollouts()) == 240 and len(looks) == 1


def test_a_recording_may_keep_more_of_its_validations(healthy, tmp_path):
    rollouts = [
        {"step": step, "split": split, "prompt": "p", "response": str(i), "reward": 0.0}
        for step, split in ((0, "validation"), (1, "train"), (1, "validation"))
        for i in range(5)
    ]
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    (run / "rollouts.jsonl").write_text("".join(json.dumps(rollout) + "\n" for rollout in rollouts))

    def kept(**most: int) -> list[tuple[int, str]]:
        recording = Recording(record(run, tmp_path / "copy", **most), speed=float("inf"))
        return [(rollout["step"], rollout["split"]) for rollout in recording.rollouts()]

    few = [(0, "validation")] * 2 + [(1, "train")] * 2 + [(1, "validation")] * 2
    assert kept(rollouts_a_step=2) == few
    more = [(0, "validation")] * 5 + [(1, "train")] * 2 + [(1, "validation")] * 5
    assert kept(rollouts_a_step=2, validation_rollouts=5) == more


def test_a_recording_keeps_the_steps_of_resumes_and_not_the_place_where_it_was_made(healthy, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    config = {"model": {"data": {"train": ["/somewhere/x.jsonl"]}, "lr": 1e-5, "path": "/somewhere"}}
    info = json.loads((run / "run.json").read_text()) | {"config": config, "host": "machine-7"}
    (run / "run.json").write_text(json.dumps(info | {"resumed_at": [4]}))
    packed = record(run, tmp_path / "copy")
    text = gzip.decompress(packed.read_bytes()).decode()
    assert "somewhere" not in text and "machine-7" not in text
    kept = Recording(packed).info
    assert kept["config"] == {"model": {"lr": 1e-5, "path": None}} and kept["resumed_at"] == [4]


def test_a_recording_has_the_alarms_and_limits_of_its_run_unless_others_are_given(healthy, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    config = {"exp_manager": {"alarms": {"kl": 2.0}, "save_best": "val_rollouts/rewards"}}
    (run / "run.json").write_text(json.dumps(RunFolder(healthy).info | {"kind": "ppo", "config": config}))
    far = [{"step": step, "time": step, "train_rollouts/kl": 0.3} for step in range(1, 5)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in far))
    (run / "alarms.jsonl").write_text("")
    for given, heard, kl in (({}, [], 2.0), ({"limits": Thresholds()}, ["kl"], 0.2)):
        recording = Recording(record(run, tmp_path / "copy", **given), speed=float("inf"))
        assert [alarm["name"] for alarm in recording.alarms()] == heard
        kept = {"alarms": {"kl": kl}, "save_best": "val_rollouts/rewards"}
        assert recording.info["config"]["exp_manager"] == kept


def test_a_recording_of_a_stopped_run_does_not_go_on(healthy, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(healthy, run)
    (run / "run.json").write_text(json.dumps(RunFolder(healthy).info | {"status": "stopped", "message": ""}))
    for _ in ("with records", "without records"):
        recording = Recording(record(run, tmp_path / "copy"), speed=float("inf"))
        assert (recording.info["status"], recording.info["message"]) == ("stopped", "")
        (run / "metrics.jsonl").write_text("")


def test_no_recording_there(tmp_path):
    words = rf"run\.json is missing.*of the package: {', '.join(shipped())}"
    with pytest.raises(FileNotFoundError, match=words):
        Recording(tmp_path)
