"""The classroom: thirty seats that train, seen within two seconds, by small reads of small files."""

import builtins
import io
import json
import threading
import time
from pathlib import Path

import pytest
from forks import until

from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder.writer import RunWriter
from widgets.classroom.classroom import Classroom, Followed

SEATS = 30
HEALTHY = {"train_rollouts/kl": 0.01, "train_rollouts/rewards": 0.1}


def write_lines(path: Path, *records: dict) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def begin(folder: Path, name: str = "ppo", steps: int = 12) -> RunWriter:
    run = RunWriter(
        folder / "runs" / name,
        kind="ppo", config={}, seed=1, hashes={}, max_steps=steps, alarms=alarms_of("ppo"),
    )  # fmt: skip
    run.start(0)
    return run


@pytest.fixture
def room(tmp_path):
    """Thirty workspaces, each with a PPO run after its first step and a long history of metrics."""
    runs = [begin(tmp_path / f"seat-{number:02d}") for number in range(SEATS)]
    for run in runs:
        (run.path / "metrics.jsonl").write_text('{"step": 0, "time": 1.0}\n' * 20_000)
        run.log(1, HEALTHY)
    yield tmp_path, runs
    for run in runs:
        run.__exit__(None, None, None)


def test_thirty_seats_are_up_to_date_within_two_seconds(room):
    folder, runs = room
    classroom = Classroom(folder)
    try:
        assert [row["step"] for row in classroom.rows] == [1] * SEATS
        written = time.monotonic()
        for number, run in enumerate(runs):
            run.log(2, HEALTHY | ({"train_rollouts/kl": float("nan")} if number == 7 else {}))
            write_lines(
                run.path.parents[1] / "progress.jsonl",
                {"what": "exercise", "name": "gae", "passed": number != 3},
            )

        def shown() -> bool:
            rows = classroom.view["rows"]
            return (
                all(row["step"] == 2 for row in rows) and sum(row["exercises"] for row in rows) == SEATS - 1
            )

        until(shown, 30)
        assert time.monotonic() - written < 2.0
        rows = classroom.view["rows"]
        assert [row["seat"] for row in rows if row["alarms"]] == ["seat-07"]
        assert rows[7]["alarms"][0].endswith("(step 2)")
        assert rows[3]["tried"] == ["gae"] and rows[4]["tried"] == []
        assert "30 seats" in classroom.table()._repr_html_()
    finally:
        classroom.close()


def test_a_look_reads_small_files_and_no_metrics(room, monkeypatch):
    folder, _ = room
    followed = Followed(folder)
    followed.poll()
    opened, read = [], [0]
    real, here = io.open, threading.get_ident()

    def counting(path, *arguments, **options):
        file = real(path, *arguments, **options)
        if threading.get_ident() == here:  # the runs' heartbeats write in threads of their own
            opened.append(Path(str(path)).name)
            read[0] += Path(str(path)).stat().st_size
        return file

    monkeypatch.setattr(builtins, "open", counting)
    monkeypatch.setattr(io, "open", counting)
    followed.poll()
    assert (
        {"run.json", "alarms.jsonl"} <= set(opened) <= {"run.json", "alarms.jsonl", "progress.jsonl", "stat"}
    )
    assert len(opened) <= 6 * SEATS and read[0] <= 10_000 * SEATS


def test_the_newest_run_and_a_name_that_was_given(tmp_path):
    seat = tmp_path / "home of Ada"  # a folder's name is nobody's to show
    with begin(seat, "sft") as first:
        first.log(1, HEALTHY)
        followed = Followed(tmp_path)
        (row,) = followed.poll()
        assert (row["seat"], row["name"], row["run"], row["status"]) == ("seat 1", "", "sft", "running")
        first.finish("finished")
    (seat / "participant.json").write_text('{"name": "Ada"}')
    followed.seats[seat].searched = float("-inf")
    with begin(seat, "rm") as second:
        (row,) = followed.poll()
        assert (row["name"], row["run"]) == ("Ada", "rm")
        second.finish("failed", "no space")
    (row,) = followed.poll()
    assert (row["status"], row["message"]) == ("failed", "no space")


def test_a_damaged_seat_hides_no_other(tmp_path):
    for name in ("seat-a", "seat-b"):
        with begin(tmp_path / name) as run:
            run.finish("finished")
    followed = Followed(tmp_path)
    followed.poll()
    (tmp_path / "seat-a" / "runs" / "ppo" / "run.json").write_text('{"kind": ')
    rows = followed.poll()
    assert rows[0]["unread"].startswith("JSONDecodeError") and rows[0]["status"] == "finished"
    assert rows[1]["unread"] == "" and rows[1]["status"] == "finished"


def test_quizzes_count_questions_not_tries(tmp_path):
    (tmp_path / "seat-a").mkdir()
    answer = {"what": "answer", "quiz": "03", "question": "mask"}
    write_lines(
        tmp_path / "seat-a" / "progress.jsonl",
        answer | {"right": False}, answer | {"right": True}, answer | {"question": "loss", "right": False}, {"what": "new"},
    )  # fmt: skip
    (row,) = Followed(tmp_path).poll()
    assert (row["right"], row["answered"]) == (1, 2)


def test_an_empty_folder_and_one_that_is_not_there(tmp_path):
    assert Followed(tmp_path).poll() == Followed(tmp_path / "not there").poll() == []
