"""progress.jsonl: several writers, torn lines, full disks; what is read of it, and `aligner progress`."""

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    assert [(r["what"], r["name"], r["passed"]) for r in lines(workspace)] == [("exercise", "gae", False)]
    assert [r["what"] for r in lines(other)] == ["exercise", "answer"]
    assert read_progress(workspace).passed == [] and read_progress(other).passed == ["gae"]


def test_without_a_workspace_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(learning_progress, "_workspace", None)
    monkeypatch.chdir(tmp_path)
    record_exercise("gae", True)
    assert list(tmp_path.iterdir()) == []


def test_a_solved_notebook_passes_nothing_for_the_learner_and_a_passed_exercise_stays_passed(
    workspace, tmp_path, monkeypatch
):
    (tmp_path / "solved").mkdir()
    with monkeypatch.context() as in_solved:
        in_solved.chdir(tmp_path / "solved")
        record_exercise("gae", True)
        record_exercise("masked_loss", True)
    progress = read_progress(workspace)
    assert progress.passed == [] and progress.solved == {"gae", "masked_loss"} and progress.damaged == 0
    assert "run by solved notebooks alone: 2" in ProgressTable(workspace).caption
    for passed in (False, True, False):
        record_exercise("gae", passed)
    assert read_progress(workspace).exercises["gae"] and read_progress(workspace).passed == ["gae"]
    caption = ProgressTable(workspace).caption
    assert "exercises 1 of" in caption and "run by solved notebooks alone: 1" in caption


def test_a_run_that_a_solved_notebook_started_counts_only_once_the_learner_starts_it(
    workspace, tmp_path, monkeypatch
):
    (tmp_path / "solved").mkdir()
    lab = Workspace(workspace, "smoke")
    monkeypatch.setattr(Workspace, "commands", lambda *_, **__: {})
    monkeypatch.setattr("cluster.submit", lambda commands, run, *_: write_run(workspace, run.name))
    with monkeypatch.context() as in_solved:
        in_solved.chdir(tmp_path / "solved")
        lab.submit("sft")
        lab.record("03", {"sft": {"val_loss_before": 2.5, "val_loss_after": 2.0}})
        record_attack(2, None)
    write_run(workspace, "rm")  # from a terminal
    progress = read_progress(workspace)
    assert progress.runs == {"rm": "rm"} and progress.solved_runs == {"sft"} and progress.damaged == 0
    assert "runs started by solved notebooks alone: 1" in ProgressTable(workspace).caption
    page = portfolio_page(workspace)
    assert "<h2>Results</h2>" not in page and "sft</th>" not in page and "rm</th>" in page
    (workspace / "runs" / "sft" / "run.json").unlink()
    (workspace / "runs" / "sft").rmdir()
    lab.submit("sft")
    lab.record("03", {"sft": {"val_loss_before": 2.5, "val_loss_after": 2.0}})
    assert read_progress(workspace).runs.keys() == {"sft", "rm"}
    assert "2.50 → 2.00" in portfolio_page(workspace)


def test_a_full_disk_is_a_warning(workspace, monkeypatch):
    error = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "write", Mock(side_effect=error))
    with pytest.warns(UserWarning, match=r"could not be saved: .*progress\.jsonl: No space left on device"):
        record_exercise("gae", True)


RECORD = st.fixed_dictionaries({"what": st.just("exercise"), "name": st.text(), "passed": st.booleans()})


@settings(max_examples=30)  # each syncs its lines to the disk
@given(records=st.lists(RECORD, min_size=1), data=st.data())
def test_wherever_a_crash_cuts_the_file_all_whole_lines_and_all_later_ones_are_read(
    tmp_path_factory, records, data
):
    path = tmp_path_factory.mktemp("torn") / "progress.jsonl"
    for record in records:
        learning_progress.append(path, record)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    learning_progress.append(path, {"what": "exercise", "name": "after the crash", "passed": True})
    kept = whole[:cut].count(b"\n") + (whole[cut : cut + 1] == b"\n")  # a line may lack its newline alone
    progress = read_progress(path.parent)
    expected = {record["name"] for record in records[:kept]} | {"after the crash"}
    assert set(progress.exercises) == expected
    assert progress.damaged == (cut > 0 and whole[cut - 1 : cut + 1].find(b"\n") == -1)


def test_several_kernels_write_whole_lines(workspace):
    code = (
        "import sys; from aligner_lib.tutorial.workspace import learning_progress as p; p.note_workspace(sys.argv[1])\n"
        "for i in range(100): p.record_exercise(f'{sys.argv[2]}-{i}-' + 'x' * 300, True)"
    )
    kernels = [subprocess.Popen([sys.executable, "-c", code, workspace, str(i)]) for i in range(2)]
    assert [kernel.wait(60) for kernel in kernels] == [0, 0]
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


@pytest.mark.parametrize(
    ("number", "tries", "quiz"),
    [
        ("03", [("stop-token", 0), ("first-loss", 2), ("first-loss", 0), ("two-means", 1)], Count(2, 5)),
        ("10", [("hunt-03", 4), ("hunt-03", 0), ("hunt-04", 0)], Count(2, 45)),  # three questions a run
    ],
)
def test_first_tries_are_counted_apart_from_later_ones(workspace, number, tries, quiz):
    for question, choice in tries:
        record_answer(number, question, choice, choice == 0)
    row = next(row for row in ProgressTable(workspace).rows if row.number == number)
    assert (row.quiz, row.at_first) == (quiz, 1)


def test_finished_runs_count_and_are_remembered_when_they_are_removed(workspace):
    lab = Workspace(workspace, "smoke")
    write_run(workspace, "sft")
    write_run(workspace, "rm", "failed")
    assert read_progress(workspace).runs == {"sft": "sft"}  # noted or not
    assert not (workspace / "progress.jsonl").exists()
    for _ in range(2):
        lab.record("03", {})
    assert [r["name"] for r in lines(workspace) if r["what"] == "run"] == ["sft"]
    (workspace / "runs" / "sft" / "run.json").unlink()
    assert read_progress(workspace).runs == {"sft": "sft"}


def test_here_is_the_furthest_notebook_or_the_one_after_it(workspace):
    assert ProgressTable(workspace).here.number == "00"
    write_run(workspace, "sft")
    table = ProgressTable(workspace)
    assert table.here.number == "03" and table._repr_html_().count('aria-current="step"') == 1
    assert "03 SFT" in repr(table).splitlines()[4] and repr(table).count("you are here") == 1
    for question in load_quiz("03").questions:
        record_answer("03", question.id, 0, True)
    for name in exercises_of("03"):
        record_exercise(name, True)
    assert ProgressTable(workspace).here.number == "04"


def test_the_command_shows_the_newest_workspace_below_runs(tmp_path, monkeypatch, capsys):
    def aligner(*arguments) -> int:
        monkeypatch.setattr(sys, "argv", ["aligner", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code or 0

    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        (["progress"], "no workspace in runs/"),
        (["progress", "x"], "x is not a folder"),
    ):
        assert aligner(*arguments) == 2
        assert words in capsys.readouterr().err
    for name in ("tutorial", "another"):
        Workspace(tmp_path / "runs" / name, "smoke")
        record_exercise("gae", True)
    other = tmp_path / "runs" / "another"
    os.utime(other / "progress.jsonl", (1, 1))
    assert aligner("progress") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("runs/tutorial\n") and shown.count("you are here") == 1
    assert "04 The reward model" in shown
    assert aligner("progress", other, "--portfolio", tmp_path / "p.html") == 0
    assert "portfolio" in capsys.readouterr().out
    assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE")
