"""The classroom: seats that train, seen by small reads of small files."""

import builtins
import io
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from forks import until
from run_folders import change_info, write_lines, write_run

from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.writer import RunWriter
from widgets.classroom import classroom
from widgets.classroom.classroom import Classroom, Followed, Seat

SEATS = 9
HEALTHY = {"train_rollouts/kl": 0.01, "train_rollouts/rewards": 0.1}


def begin(seat: Path, name: str = "ppo", step: int = 0) -> RunWriter:
    settings = {"config": {}, "seed": 1, "hashes": {}, "max_steps": 12, "alarms": alarms_of("ppo")}
    run = RunWriter(seat / "runs" / name, kind="ppo", **settings)
    run.start(step)
    return run


def look_for_runs(followed: Followed, seat: Path) -> None:
    """A seat's folders are searched now and then; its next look does."""
    followed.seats[seat].searched = float("-inf")


def row_of(seat: Path, *progress: dict) -> dict:
    """The row of a seat with this progress."""
    seat.mkdir()
    write_lines(seat / "progress.jsonl", progress)
    (row,) = Followed(seat.parent).poll()
    return row


@pytest.fixture
def room(tmp_path):
    """Workspaces, each with a PPO run after its first step and a long history of metrics."""
    runs = [begin(tmp_path / f"seat-{number:02d}") for number in range(SEATS)]
    for run in runs:
        (run.path / "metrics.jsonl").write_text('{"step": 0, "time": 1.0}\n' * 5_000)
        run.log(1, HEALTHY)
    yield tmp_path, runs
    for run in runs:
        run.__exit__(None, None, None)


def test_every_seat_s_news_reach_the_table(room):
    folder, runs = room
    classroom = Classroom(folder)
    try:
        assert [row["step"] for row in classroom.rows] == [1] * SEATS
        for number, run in enumerate(runs):
            run.log(2, HEALTHY | ({"train_rollouts/kl": float("nan")} if number == 7 else {}))
            exercise = {"what": "exercise", "name": "gae", "passed": number != 3}
            write_lines(run.path.parents[1] / "progress.jsonl", [exercise])

        def all_are_shown() -> bool:
            rows = classroom.view["rows"]
            return {row["step"] for row in rows} == {2} and sum(r["exercises"] for r in rows) == SEATS - 1

        until(all_are_shown, "every seat's second step and exercise")
        rows = classroom.view["rows"]
        assert [row["seat"] for row in rows if row["alarms"]] == ["seat-07"]
        assert rows[7]["alarms"][0].endswith("(step 2)")
        assert rows[3]["tried"] == ["gae"] and rows[4]["tried"] == []
        assert f"{SEATS} seats" in classroom.table()._repr_html_()
    finally:
        classroom.close()


def test_a_look_reads_small_files_and_no_metrics(room, monkeypatch):
    followed = Followed(room[0])
    followed.poll()
    opened = []
    open_file, this_thread = io.open, threading.get_ident()

    def recording_open(path, *arguments, **options):
        file = open_file(path, *arguments, **options)
        if threading.get_ident() == this_thread:  # the runs' heartbeats write in threads of their own
            opened.append(Path(str(path)))
        return file

    monkeypatch.setattr(builtins, "open", recording_open)
    monkeypatch.setattr(io, "open", recording_open)
    followed.poll()
    needed = {"run.json", "alarms.jsonl"}
    assert needed <= {path.name for path in opened} <= needed | {"progress.jsonl", "stat"}
    assert len(opened) <= 6 * SEATS and sum(path.stat().st_size for path in opened) <= 10_000 * SEATS


def test_the_newest_run_and_a_name_that_was_given(tmp_path):
    seat = tmp_path / "home of Ada"  # a folder's name is nobody's to show
    with begin(seat, "sft") as first:
        first.log(1, HEALTHY)
        followed = Followed(tmp_path)
        (row,) = followed.poll()
        assert (row["name"], row["run"], row["status"]) == ("", "sft", "running")
        assert re.fullmatch("seat [0-9a-f]{6}", row["seat"])
        assert row["seat"] == Followed(tmp_path).poll()[0]["seat"]  # after a restart of the kernel, too
        first.finish("finished")
    (seat / "participant.json").write_text('{"name": "Ada"}')
    look_for_runs(followed, seat)
    with begin(seat, "rm") as second:
        (row,) = followed.poll()
        assert (row["name"], row["run"]) == ("Ada", "rm")
        second.finish("failed", f"no space in {second.path}")
    (row,) = followed.poll()
    assert (row["status"], row["message"]) == ("failed", "no space in …/rm")
    with begin(seat, "sft", step=1) as first:  # the older run is resumed
        look_for_runs(followed, seat)
        assert [(row["run"], row["status"]) for row in followed.poll()] == [("sft", "running")]
        first.finish("finished")
    shutil.rmtree(second.path)
    look_for_runs(followed, seat)
    (row,) = followed.poll()
    assert (row["run"], row["status"]) == ("sft", "finished")


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("runs/ppo/run.json", '{"kind": ', "…/run.json is damaged"),
        ("runs/ppo/run.json", "[" * 200_000, "…/run.json is damaged"),
        ("runs/ppo/run.json", '{"pid": 99999999999999999999}', "…/run.json is damaged"),
        ("runs/ppo/run.json", None, "…/run.json is damaged"),
        ("runs/sft/run.json", '{"created": "today"}', "…/run.json is damaged"),
        ("runs/sft/run.json/a-folder", "", "Is a directory"),
        ("progress.jsonl", None, "…/progress.jsonl is no regular file"),
        ("progress.jsonl", '{"what": "attack", "hacks": 1e999}\n', ""),
        ("progress.jsonl", " " * (5 << 20), "…/progress.jsonl has a line of over 4 MiB"),
        ("participant.json", "[" * 200_000, "…/participant.json is no JSON object"),
        ("participant.json", '{"name": "\\ud83d"}', ""),  # half of a pair
        ("preflight.json", '{"failed": 5}', ""),
        ("runs/ppo/alarms.jsonl", None, "…/alarms.jsonl is no regular file"),
        ("runs/ppo/alarms.jsonl", '{"name": [], "title": "", "step": 1}\n', ""),
        ("runs/sft/run.json", '{"status": "running", "host": "another"}', "…/run.json is damaged"),
    ],
)
@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_damaged_seat_hides_no_other(tmp_path, monkeypatch, file, content, fault, is_seen_before):
    """None: a named pipe in place of the file. A row that was read before keeps its run, even if run.json is damaged now."""
    for name in ("seat-a", "seat-b"):
        with begin(tmp_path / name) as run:
            run.finish("finished")
    followed = Followed(tmp_path)
    if is_seen_before:
        followed.poll()
    path = tmp_path / "seat-a" / file
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path) if content is None else path.write_text(content)
    if is_seen_before:
        look_for_runs(followed, tmp_path / "seat-a")
    searches = Mock(wraps=classroom.find_runs)
    monkeypatch.setattr(classroom, "find_runs", searches)
    is_readable = is_seen_before or file != "runs/ppo/run.json"
    for _ in range(3):
        rows = damaged, whole = followed.poll()
        assert fault in damaged["unread"] and bool(fault) == bool(damaged["unread"])
        assert (damaged["run"], damaged["status"]) == (("ppo", "finished") if is_readable else ("", ""))
        assert whole["status"] == "finished" and whole["unread"] == ""
        json.dumps(rows, ensure_ascii=False).encode()  # as Jupyter does
    assert searches.call_count == (
        1 if is_seen_before else 2
    )  # the damaged seat, and the other at its first poll


def test_a_long_file_of_progress_is_read_by_several_polls(tmp_path, monkeypatch):
    records = [{"what": "exercise", "name": name, "passed": True} for name in "abc"]
    monkeypatch.setattr(classroom, "BYTES_OF_A_POLL", len(json.dumps(records[0])) + 1)
    seat = Seat(tmp_path, 1)
    write_lines(tmp_path / "progress.jsonl", records)
    assert [seat.poll(0.0)["exercises"] for _ in range(4)] == [1, 2, 3, 3]


def test_a_seat_that_cannot_be_entered_hides_no_other(tmp_path, monkeypatch):
    for name in ("seat-a", "seat-b"):
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "progress.jsonl", [{"what": "start", "name": "sft"}])
    (tmp_path / "a file").touch()

    def refused(call):
        def checked(self, *arguments):
            if "seat-a" in str(getattr(self, "path", self)):
                raise PermissionError(f"{tmp_path}/seat-a is not yours")
            return call(self, *arguments)

        return checked

    for reader, name in ((Path, "is_dir"), (JsonlReader, "poll")):
        monkeypatch.setattr(reader, name, refused(getattr(reader, name)))
    rows = [(row["seat"], row["unread"]) for row in Followed(tmp_path).poll()]
    assert rows == [("seat-a", "PermissionError: /… is not yours"), ("seat-b", "")]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no space in /home/jane", "no space in /…"),
        ("/home/jane: full, /srv/homes/jane: full", "/…: full, /…: full"),
        ("no space in '/Users/Jane Doe/x'", "no space in '…/x'"),
        ("cp /home/jane/x to /home/Jane van Doe/y z", "cp …/x to …/y z"),
        ("see https://a.org/home/jane", "see https://a.org/home/jane"),
        ("http://jane:pa/ss@judge:80/v1 refused", "http://judge:80/v1 refused"),
        ("('jane:p:w@judge:8000') is silent", "('judge:8000') is silent"),
        ("http://judge:8000,jane@corp.de wrote", "http://judge:8000,jane@corp.de wrote"),
        ("https://u:p@a.org/v1?of=b@c", "https://a.org/v1?of=b@c"),
    ],
)
def test_a_message_names_no_account_even_if_the_reader_has_no_home(tmp_path, monkeypatch, message, shown):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert Seat(tmp_path, 1).anonymous(message) == shown


def test_seats_with_one_folder_name_have_a_number_each(tmp_path):
    for group in ("morning", "evening"):
        write_run(tmp_path / group / "seat-1" / "runs" / "ppo")
    rows = Followed(tmp_path, "*/seat-*").poll()
    assert [(row["seat"], row["number"]) for row in rows] == [("seat-1", 1), ("seat-1", 2)]


def test_an_alarm_of_a_step_that_a_resumed_run_repeats_is_gone(tmp_path):
    alarms = [{"name": name, "title": name, "step": step} for name, step in (("kl", 2), ("entropy", 5))]
    with begin(tmp_path / "seat-a") as run:
        write_lines(run.path / "alarms.jsonl", alarms)
        followed = Followed(tmp_path)
        assert followed.poll()[0]["alarms"] == ["kl (step 2)", "entropy (step 5)"]
        run.rewind(3)
        assert followed.poll()[0]["alarms"] == ["kl (step 2)"]


def test_the_progress_of_a_removed_workspace_does_not_count(tmp_path):
    """Another workspace of the seat keeps its progress."""
    passed = {"what": "exercise", "name": "gae", "passed": True}
    for name in ("first", "second"):
        (tmp_path / "ada" / name).mkdir(parents=True)
        write_lines(tmp_path / "ada" / name / "progress.jsonl", [passed | {"name": name}, passed])
    followed = Followed(tmp_path)
    assert followed.poll()[0]["exercises"] == 3  # first, second and gae
    (tmp_path / "ada" / "first" / "progress.jsonl").unlink()
    assert followed.poll()[0]["exercises"] == 2  # second and gae
    write_lines(tmp_path / "ada" / "first" / "progress.jsonl", [passed])
    assert followed.poll()[0]["exercises"] == 2


def test_a_file_of_progress_that_cannot_be_read_now_loses_no_record_of_another(tmp_path, monkeypatch):
    row_of(tmp_path / "seat-a", {})
    passed = {"what": "exercise", "passed": True}
    for name in ("first", "second"):
        (tmp_path / "seat-a" / name).mkdir()
        write_lines(tmp_path / "seat-a" / name / "progress.jsonl", [passed | {"name": name}])
    followed, read = Followed(tmp_path), JsonlReader._read
    for stale in ("first", "second"):

        def read_unless_stale(reader, max_bytes, stale=stale):
            if reader.path.parent.name == stale:
                raise OSError(116, "Stale file handle")
            return read(reader, max_bytes)

        monkeypatch.setattr(JsonlReader, "_read", read_unless_stale)
        assert followed.poll()[0]["unread"] == "OSError: [Errno 116] Stale file handle"
    monkeypatch.undo()
    assert followed.poll()[0]["exercises"] == 2


def test_quizzes_count_questions_not_tries(tmp_path):
    answer = {"what": "answer", "quiz": "03", "question": "mask"}
    tries = [answer | {"right": right} for right in (False, True)]
    other = answer | {"question": "loss", "right": False}
    damaged = {"what": "attack", "hacks": "many"}, {"time": "noon"}  # they hide no other record
    row = row_of(tmp_path / "seat-a", *damaged, *tries, other, {"what": "new"})
    assert (row["right"], row["answered"]) == (1, 2)


@pytest.mark.parametrize(
    ("number", "shown"), [(1, "2 hacks, first after 3.1 min"), (2, "0 hacks")], ids=["hacked", "unhacked"]
)
def test_the_newest_attack_on_a_judge_is_shown(tmp_path, number, shown):
    attacks = [{"hacks": 2, "first_minutes": 3.14}, {"hacks": 0, "first_minutes": None}][:number]
    attacks.append({"hacks": 9, "first_minutes": None, "solved": True})  # the solved notebook's
    row = row_of(tmp_path / "seat-0", *({"what": "attack", "time": 1.0} | attack for attack in attacks))
    assert row["attack"] == shown


@pytest.mark.parametrize("seconds", [-180, 7200])
def test_a_seat_with_a_wrong_clock_trains_while_its_heartbeat_changes(tmp_path, seconds):
    beat = time.time() + seconds
    run, statuses = tmp_path / "seat-1" / "runs" / "ppo", []
    write_run(run, status="running", host="another machine", heartbeat={"time": beat})
    seat = Seat(tmp_path / "seat-1", 1)
    for now, passed in ((0, 0), (2, 2), (121, 2), (123, 2)):  # the last change is seen after 2 s
        change_info(run, heartbeat={"time": beat + passed})
        row = seat.poll(now)
        statuses.append(row["status"])
    assert statuses[1:] == ["running", "running", "lost"]
    assert time.time() - 10 < row["last"] <= time.time()


def test_a_recorded_run_is_the_newest_once_it_is_placed(tmp_path):
    write_run(tmp_path / "seat-1" / "runs" / "sft", heartbeat={"time": 20.0})
    recorded = {"heartbeat": {"time": 10.0}, "recorded": {"placed": 30.0}}
    write_run(tmp_path / "seat-1" / "runs" / "rm", **recorded)
    (row,) = Followed(tmp_path).poll()
    assert (row["run"], row["last"]) == ("rm", 30.0)


def test_the_exercise_of_the_latest_attempt_is_shown(tmp_path):
    attempts = [{"what": "exercise", "name": name, "passed": False} for name in ("gae", "loss", "gae")]
    assert row_of(tmp_path / "seat-1", *attempts)["tried"] == ["gae"]


def test_folders_that_are_no_seats_are_left_out(tmp_path):
    (tmp_path / "handouts").mkdir()
    (tmp_path / "lost+found" / "participant.json").mkdir(parents=True)  # unreadable
    row_of(tmp_path / "seat-1", {"what": "exercise", "name": "gae", "passed": True})
    assert [row["seat"] for row in Followed(tmp_path).poll()] == ["seat-1"]


def test_an_empty_folder_and_one_that_is_not_there(tmp_path):
    assert Followed(tmp_path).poll() == Followed(tmp_path / "not there").poll() == []
