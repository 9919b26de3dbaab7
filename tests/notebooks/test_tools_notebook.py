"""Notebook 14 with the smoke profile, as a user runs it."""

import json

from tutorial_runs import run_tutorial, runs_notebooks

from aligner_lib.tutorial.exercises.registry import exercises


@runs_notebooks
def test_the_tools_notebook_runs_its_four_jobs_and_every_solution_passes(tmp_path):
    run_tutorial(tmp_path, "--only", "14")
    shown = (tmp_path / "notebooks" / "14_tools.ipynb").read_text()
    names = [name for name, exercise in exercises().items() if exercise.notebook == "14"]
    assert names and all(f"✓ {name}: passed" in shown for name in names)
    for run, kind in {
        "tools-alone": "grpo",
        "tools-sft": "sft",
        "tools-evaluate": "evaluate",
        "tools-stories": "evaluate",
    }.items():
        info = json.loads((tmp_path / "runs" / run / "run.json").read_text())
        assert (info["kind"], info["status"]) == (kind, "finished"), run
    # the program that copies the question, and the errors that the policy would read
    assert "calls with the numbers and +     reward 1.00   calls 1" in shown
    assert "there is no function calc; the functions are calculator" in shown
    figures = json.loads((tmp_path / "summary.json").read_text())["tools"]
    assert figures["calls_untrained"] == 0 and 0 <= figures["stories_sft"] <= 1
