"""progress.jsonl: several writers, torn lines, full disks; what is read of it, and `aligner progress`."""

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest

from aligner_lib.cli import main as cli
from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.quiz.quiz_file import load_quiz
from aligner_lib.tutorial.report.portfolio import portfolio_page
from aligner_lib.tutorial.report.progress_table import Count, ProgressTable, exercises_of
from aligner_lib.tutorial.workspace import learning_progress
from aligner_lib.tutorial.workspace.learning_progress import (
    read_progress,
    record_answer,
    record_attack,
    record_exercise,
)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_progress, "_workspace", None)
    return Workspace(tmp_path / "w", "smoke").out


@pytest.fixture
def in_solved_notebook(tmp_path, monkeypatch):
    """A function that calls another one as a solved notebook does, in the folder of the solved notebooks."""
    (tmp_path / "solved").mkdir()

    def call(function, *arguments) -> None:
        with monkeypatch.context() as in_folder:
            in_folder.chdir(tmp_path / "solved")
            function(*arguments)

    return call


def lines(workspace) -> list[dict]:
    return [json.loads(line) for line in (workspace / "progress.jsonl").read_text().splitlines()]


def write_run(workspace, name: str, status: str = "finished") -> None:
    folder = workspace / "runs" / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"kind": name, "status": status, "created": 1.0}))


def test_progress_is_recorded_in_the_newest_workspace(workspace, tmp_path):
    record_exercise("gae", False)
    other = Workspace(tmp_path / "other", "smoke").out
    record_exercise("gae", True)
    record_answer("03", "stop-token", 2, False)
    assert [record["what"] for record in lines(workspace)] == ["exercise"]
    assert [record["what"] for record in lines(other)] == ["exercise", "answer"]
    assert read_progress(workspace).passed == [] and read_progress(other).passed == ["gae"]


def test_without_a_workspace_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_progress, "_workspace", None)
    monkeypatch.chdir(tmp_path)
    record_exercise("gae", True)
    assert list(tmp_path.iterdir()) == []


def test_a_solved_notebook_passes_nothing_for_the_learner_and_a_passed_exercise_stays_passed(
    workspace, in_solved_notebook
):
    in_solved_notebook(record_exercise, "gae", True)
    Workspace(workspace, "smoke", solved=True)  # papermill started the kernel elsewhere
    record_exercise("masked_loss", True)
    Workspace(workspace, "smoke")
    progress = read_progress(workspace)
    assert progress.passed == [] and progress.solved == {"gae", "masked_loss"} and progress.damaged == 0
    assert "run by solved notebooks alone: 2" in ProgressTable(workspace).caption
    for passed in (False, True, False):
        record_exercise("gae", passed)
    assert read_progress(workspace).passed == ["gae"]
    caption = ProgressTable(workspace).caption
    assert "exercises 1 of" in caption and "run by solved notebooks alone: 1" in caption


def test_a_run_that_a_solved_notebook_started_counts_only_once_the_learner_starts_it(
    workspace, in_solved_notebook, monkeypatch
):
    lab, results = Workspace(workspace, "smoke"), {"sft": {"val_loss_before": 2.5, "val_loss_after": 2.0}}
    monkeypatch.setattr(Workspace, "commands", lambda *_, **__: {})
    monkeypatch.setattr("cluster.submit", lambda commands, run, *_: write_run(workspace, run.name))
    in_solved_notebook(lab.submit, "sft")
    in_solved_notebook(lab.record, "03", results)
    in_solved_notebook(record_attack, 2, None)
    write_run(workspace, "rm")  # from a terminal
    progress = read_progress(workspace)
    assert progress.runs == {"rm": "rm"} and progress.solved_runs == {"sft"} and progress.damaged == 0
    assert "runs started by solved notebooks alone: 1" in ProgressTable(workspace).caption
    page = portfolio_page(workspace)
    assert "<h2>Results</h2>" not in page and "sft</th>" not in page and "rm</th>" in page
    shutil.rmtree(workspace / "runs" / "sft")
    lab.submit("sft")
    lab.record("03", results)
    assert read_progress(workspace).runs.keys() == {"sft", "rm"}
    assert "2.50 → 2.00" in portfolio_page(workspace)


def test_a_removed_workspace_begins_anew(workspace):
    lab = Workspace(workspace, "smoke")
    for write, name in (
        (partial(lab.record, "02", {}), "results"),
        (partial(record_exercise, "gae", True), "exercise"),
    ):
        shutil.rmtree(workspace)
        write()
        assert [record["what"] for record in lines(workspace)] == [name]


def test_a_full_disk_is_a_warning(workspace, monkeypatch):
    error = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "write", Mock(side_effect=error))
    with pytest.warns(UserWarning, match=r"could not be saved: .*progress\.jsonl: No space left on device"):
        record_exercise("gae", True)


def test_wherever_a_crash_cuts_the_file_all_whole_lines_and_all_later_ones_are_read(tmp_path):
    path, names = tmp_path / "progress.jsonl", ["gae", "Übung"]
    records = [{"what": "exercise", "name": name, "passed": True} for name in [*names, "after the crash"]]
    for record in records[:2]:
        learning_progress.append(path, record)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        learning_progress.append(path, records[2])
        kept = whole[: cut + 1].count(b"\n")  # a line may lack its newline alone
        progress = read_progress(tmp_path)
        assert [*progress.exercises] == [*names[:kept], "after the crash"]
        assert progress.damaged == (cut > 0 and b"\n" not in whole[cut - 1 : cut + 1])


def test_several_writers_write_whole_lines(workspace):
    def write(writer: int) -> None:
        for number in range(50):
            record_exercise(f"{writer}-{number}-" + "x" * 300, True)

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, range(4)))
    progress = read_progress(workspace)
    assert len(progress.exercises) == 200 and progress.damaged == 0


def test_lines_that_are_no_records_are_counted_and_left_out(workspace):
    (workspace / "progress.jsonl").write_text(
        '{"what": "exercise"}\n[]\nno json\n{"what": "dance", "name": "x"}\n'
    )
    record_exercise("gae", True)
    progress = read_progress(workspace)
    assert progress.damaged == 4 and progress.exercises == {"gae": True}
    assert "4 damaged lines left out" in ProgressTable(workspace).caption


def test_first_tries_are_counted_apart_from_later_ones(workspace):
    answers = [("stop-token", 0), ("first-loss", 2), ("first-loss", 0), ("two-means", 1)]
    for question, choice in answers:
        record_answer("03", question, choice, choice == 0)
    record_answer("10", "hunt-03", 0, True)
    rows = {row.number: row for row in ProgressTable(workspace).rows}
    assert (rows["03"].quiz, rows["03"].at_first) == (Count(2, 5), 1)
    assert rows["10"].quiz == Count(1, 45)  # three questions on each of the runs of the bug hunt


def test_finished_runs_count_and_are_remembered_when_they_are_removed(workspace):
    lab = Workspace(workspace, "smoke")
    write_run(workspace, "sft")
    write_run(workspace, "rm", "failed")
    assert read_progress(workspace).runs == {"sft": "sft"}  # noted or not
    for _ in range(2):
        lab.record("03", {})
    assert [record["name"] for record in lines(workspace) if record["what"] == "run"] == ["sft"]
    (workspace / "runs" / "sft" / "run.json").unlink()
    assert read_progress(workspace).runs == {"sft": "sft"}


def test_here_is_the_furthest_notebook_or_the_one_after_it(workspace):
    assert ProgressTable(workspace).here.number == "00"
    write_run(workspace, "sft")
    table = ProgressTable(workspace)
    assert table.here.number == "03" and table._repr_html_().count('aria-current="step"') == 1
    for question in load_quiz("03").questions:
        record_answer("03", question.id, 0, True)
    for name in exercises_of("03"):
        record_exercise(name, True)
    assert ProgressTable(workspace).here.number == "04"


def test_the_command_shows_the_newest_workspace_below_runs(tmp_path, monkeypatch, capsys):
    def aligner(*arguments) -> tuple[int, str]:
        """The exit status and the output of the command."""
        monkeypatch.setattr(sys, "argv", ["aligner", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code or 0, "".join(capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    for arguments, words in (["progress"], "no workspace in runs/"), (["progress", "x"], "x is not a folder"):
        status, output = aligner(*arguments)
        assert status == 2 and words in output
    for name in ("tutorial", "another"):
        Workspace(tmp_path / "runs" / name, "smoke")
        record_exercise("gae", True)
    other = tmp_path / "runs" / "another"
    os.utime(other / "progress.jsonl", (1, 1))
    capsys.readouterr()
    status, output = aligner("progress")
    assert status == 0 and output.startswith("runs/tutorial\n") and output.count("you are here") == 1
    status, output = aligner("progress", "runs")
    assert status == 2 and "name one of them, such as runs/tutorial" in output
    status, output = aligner("progress", other, "--portfolio", tmp_path / "p.html")
    assert status == 0 and "portfolio" in output
    assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE")
