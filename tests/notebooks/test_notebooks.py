"""The notebooks as they are committed, and the whole tutorial with the smoke profile as a user runs it."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import socket
import subprocess
import sys
from pathlib import Path

import forks
import outputs
import pytest
from pages import external_references
from tutorial_runs import ROOT, assert_solutions_pass, info_of, run_tutorial, runs_notebooks, summary_of

from aligner_lib.tutorial.execution.run_notebooks import LAST_OF_THE_WAY
from aligner_lib.tutorial.exercises.registry import exercises
from widgets import Quiz

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
SOLVED = sorted((ROOT / "notebooks" / "solved").glob("[0-9]*.ipynb"))
BOTH = pytest.mark.parametrize(
    "path", [*NOTEBOOKS, *SOLVED], ids=lambda path: f"{path.parent.name}-{path.stem}"
)


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_notebooks_equal_the_output_of_build():
    command = [sys.executable, "notebooks/build.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `python notebooks/build.py`: {done.stdout}{done.stderr}"
    sources = [path.stem for path in sorted((ROOT / "notebooks/src").glob("[0-9]*.py"))]
    assert sources == [path.stem for path in NOTEBOOKS] == [path.stem for path in SOLVED]


def test_a_solved_notebook_differs_from_the_learner_s_in_solutions_paths_and_the_workspace_s_mark_only():
    for learners, solved in zip(NOTEBOOKS, SOLVED):
        pair = (json.loads(path.read_text())["cells"] for path in (learners, solved))
        for cell, answer in zip(*pair, strict=True):
            if cell["metadata"].get("tags") == ["exercise"]:
                assert answer["metadata"]["tags"] == ["solution"] and cell["source"] != answer["source"]
            else:
                same = {"source": answer["source"].replace("../../", "../").replace(", solved=True)", ")")}
                assert cell == answer | same | ({"outputs": []} if "outputs" in answer else {})
        code = "".join(cell["source"] for cell in cells(solved, "code"))
        assert 'out = "../../runs/tutorial"' in code and code.count(", solved=True)") == code.count(
            "Workspace(out"
        )


@BOTH
def test_a_committed_notebook_has_literal_parameters_and_short_cells(path):
    parameters = [cell for cell in cells(path, "code") if "parameters" in cell["metadata"].get("tags", [])]
    assert len(parameters) == 1
    for statement in ast.parse("".join(parameters[0]["source"])).body:
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)
    for cell in cells(path, "code"):
        assert cell["execution_count"] is None and (path.parent.name == "solved" or cell["outputs"] == [])
        assert "".join(cell["source"]).count("\n") < 25


PLACE = re.compile(r"/(tmp|home|root|work|Users)/|/dev/shm")
PICTURE = re.compile(r'"image/png": "[^"]*"')


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.stem)
def test_the_outputs_of_a_solved_notebook_are_small_and_name_no_place(path):
    text = PICTURE.sub("", path.read_text())
    assert path.stat().st_size < 600_000 and not PLACE.search(text)
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    with_output = [cell for cell in cells(path, "code") if cell["outputs"]]
    assert len(with_output) > len(cells(path, "code")) / 3, "outputs of another state of the notebook"
    for cell in with_output:
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "display_data")
            assert not [kind for kind in output.get("data", {}) if "widget" in kind]


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.stem)
def test_a_recorded_quiz_has_today_s_questions_and_answers(path):
    for cell in cells(path, "code"):
        recorded = [
            output["data"]["text/html"] for output in cell["outputs"] if "text/html" in output.get("data", {})
        ]
        if (quiz := re.search(r'(?m)^Quiz\("(\w+)"\)', "".join(cell["source"]))) and recorded:
            assert "".join(recorded[0]) == Quiz(quiz[1]).static_html(), "record the notebook again"


def test_outputs_without_a_kernel_are_kept_and_others_are_not():
    widget = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "Quiz()"}
    table = {"text/html": "<table></table>", "text/plain": "table"}
    large = {"text/html": "x" * 200_000, "text/plain": "table"}
    number = {"text/plain": "2"}

    def shown(data: dict) -> dict | None:
        output = outputs.static({"output_type": "display_data", "metadata": {}, "data": data})
        return output and output["data"]

    assert shown(widget) is None and shown(large) is None
    assert shown(table) == shown(widget | table) == table and shown(number) == number
    assert outputs.static({"output_type": "stream", "name": "stderr", "text": ["a warning"]}) is None
    assert outputs.static(printed("a", "b"))["text"] == "ab"
    assert outputs.key("a = 1\n") == outputs.key("a = 1") != outputs.key("a = 2")


def printed(*pieces: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": [*pieces]}


def test_printed_text_is_one_output_whatever_pieces_the_kernel_sent():
    first, second, third = (printed() | {"text": text} for text in ("a\n", "b\n", "c"))
    joined = outputs._joined([first, second, {"output_type": "display_data", "data": {}}, third])
    assert [output.get("text") for output in joined] == ["a\nb\n", None, "c"]


def test_places_and_the_host_leave_texts_and_no_picture(monkeypatch):
    """A host named vm stood in a picture's base 64, which could not be read afterwards."""
    monkeypatch.setattr(outputs.socket, "gethostname", lambda: "vm")
    data = {"image/png": "iVBO/vm+/home/a", "text/plain": ["vm: /home/a/runs", "vmstat"]}
    assert outputs._without({"/home/a": "~"}, {"data": data}) == {
        "data": data | {"text/plain": ["localhost: ~/runs", "vmstat"]}
    }


@pytest.mark.parametrize("number", ["03", "04", "05", "06", "07", "09", "11", "14"])
def test_notebooks_that_train_pass_on_their_parameters(number):
    """On Slurm, only 09 is run, and nothing runs with LoRA."""
    beside = number > LAST_OF_THE_WAY
    (path,) = [path for path in NOTEBOOKS if path.stem.startswith(f"{number}_")]
    parameters, workspace, *others = ["".join(cell["source"]) for cell in cells(path, "code")]
    names = "where" if beside else "where, lora, start"
    assert f"Workspace(out, profile, dataset, {names})" in workspace
    assert "\nwhere = " in parameters and "lab.submit" in "".join(others)
    assert beside or "\nlora = False" in parameters


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory) -> Path:
    """All notebooks up to 08. The critic and the reward model of notebook 05 run in a second job if PyTriton is installed."""
    out = tmp_path_factory.mktemp("tutorial")
    placement = "remote" if importlib.util.find_spec("pytriton") else "in-process"
    run_tutorial(out, "-p", f"critic_placement={placement}")
    return out


@runs_notebooks
def test_the_smoke_tutorial_reaches_its_figures(tutorial):
    summary = summary_of(tutorial)
    assert summary["profile"] == "smoke"
    assert list(summary["seconds"]) == [path.stem for path in NOTEBOOKS if path.stem < "09"]
    assert summary["peak_memory_gib"] <= 2
    assert summary["sft"]["val_loss_after"] <= 0.7 * summary["sft"]["val_loss_before"]
    assert summary["rm"]["first_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert summary["rm"]["val_acc"] >= 0.9
    assert summary["dpo"]["val_acc"] >= 0.9 and summary["dpo"]["val_margin"] > 0
    ppo = summary["ppo"]
    assert ppo["val_reward_ppo"] - ppo["val_reward_sft"] >= ppo["val_reward_sft_std"]
    assert 0 < ppo["kl_per_token"] < 2
    assert {"mean_length_sft", "mean_length_ppo", "win_rate"} <= ppo.keys()


@runs_notebooks
def test_every_solution_passes_in_its_notebook_and_trains_where_it_can(tutorial):
    for number in {exercise.notebook for exercise in exercises().values()}:
        if number <= LAST_OF_THE_WAY:
            assert_solutions_pass(tutorial, number)
    trained = [exercise.trains for exercise in exercises().values() if exercise.trains]
    for kind in {kind for kind, _ in trained}:
        folder = tutorial / "runs" / kind
        functions = info_of(folder)["config"]["functions"]
        names = [name for of_kind, name in trained if of_kind == kind]
        assert functions == {name: str(folder / "functions" / f"{name}.py") for name in names}


@runs_notebooks
def test_the_report_opens_offline_and_contains_the_pictures(tutorial):
    page = (tutorial / "report.html").read_text()
    assert external_references(page) == []
    assert page.count("data:image/png;base64,") >= 8


@runs_notebooks
def test_executed_notebooks_are_small_and_show_the_monitor_as_a_picture(tutorial):
    for path in (tutorial / "notebooks").glob("*.ipynb"):
        assert path.stat().st_size < 1_200_000, path.name
    shown = [o for cell in cells(tutorial / "notebooks/05_ppo.ipynb", "code") for o in cell["outputs"]]
    words = [output.get("metadata", {}).get("image/png", {}).get("alt", "") for output in shown]
    assert any("finished" in alt or "KL" in alt for alt in words)


@runs_notebooks
@pytest.mark.remote_critic
def test_ppo_with_a_remote_critic(tutorial):
    forks.skip_without_pytriton()
    text = (tutorial / "notebooks" / "05_ppo.ipynb").read_text()
    assert "train steps · values for" in text  # the line that follows the critic
    run = tutorial / "runs" / "ppo"
    actor, critic = info_of(run), info_of(run / "critic")
    assert (actor["status"], critic["status"], critic["kind"]) == ("finished", "finished", "critic")
    assert critic["message"].endswith("is done")
