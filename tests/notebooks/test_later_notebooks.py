"""The notebooks after the way with the smoke profile, as a user runs them. Notebooks that share parameters share a run."""

from pathlib import Path

import pytest
from tutorial_runs import assert_solutions_pass, info_of, run_tutorial, runs_notebooks, summary_of

PRINTED_SCRIPTS = ("#SBATCH --nodes=2", "#SBATCH hetjob", "| Llama-2-70B | actor | 32 | 8 × 2 × 2 |")


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """Notebooks 09, 11 and 14, which train on this machine."""
    out = tmp_path_factory.mktemp("trained")
    run_tutorial(out, "--only", "09,11,14", "-p", "where=local", "-p", "gpus_per_node=0")
    return out


@runs_notebooks
def test_scaling_out_runs_without_a_cluster(trained):
    """On this machine: several ranks learn what one does."""
    text = (trained / "notebooks" / "09_scale_out.ipynb").read_text()
    assert all(script in text for script in PRINTED_SCRIPTS)
    scaled = summary_of(trained)["scale_out"]
    assert scaled["ranks"] == 2 and scaled["largest_difference"] < 1e-5
    several = info_of(trained / "runs" / "scale-several")
    assert several["status"] == "finished"
    assert several["config"]["trainer"]["devices"] == 2  # which a single process refuses: test_failures


@runs_notebooks
def test_the_capstone_s_loop_learns_and_its_functions_train_in_the_trainer(trained):
    assert_solutions_pass(trained, "11", "token_rewards", "gae", "clipped_loss")
    run = info_of(trained / "runs" / "capstone")
    assert run["status"] == "finished"
    assert set(run["config"]["functions"]) == {"token_rewards", "advantages", "loss"}
    toy = summary_of(trained)["capstone"]
    assert toy["held"]["score"][0] > toy["score_before"] + 2 and toy["held"]["kl"][1] < 6
    assert toy["values"][0] > 0.9 * toy["best"]
    assert toy["held"]["sentences"][0] > 0.7 and toy["held"]["texts"][0] > 32
    assert toy["free"]["score"][0] > 9.9 and toy["free"]["sentences"][1] == 0
    assert toy["free"]["kl"][0] > 40 and toy["free"]["texts"][1] < 5  # "the" or "a", and ten times "happy"


@runs_notebooks
def test_the_tools_notebook_runs_its_four_jobs_and_every_solution_passes(trained):
    assert_solutions_pass(trained, "14")
    kinds = {"alone": "grpo", "sft": "sft", "evaluate": "evaluate", "stories": "evaluate"}
    for name, kind in kinds.items():
        info = info_of(trained / "runs" / f"tools-{name}")
        assert (info["kind"], info["status"]) == (kind, "finished"), name
    # the program that copies the question, and the errors that the policy would read
    shown = (trained / "notebooks" / "14_tools.ipynb").read_text()
    assert "calls with the numbers and +     reward 1.00   calls 1" in shown
    assert "there is no function calc; the functions are calculator" in shown
    figures = summary_of(trained)["tools"]
    assert figures["calls_untrained"] == 0 and 0 <= figures["stories_sft"] <= 1


@runs_notebooks
def test_notebooks_that_play_recordings_or_print_scripts_train_nothing(tmp_path):
    run_tutorial(tmp_path, "--only", "09,10,12,13", "-p", "where=print", "-p", "gpus_per_node=8")
    text = (tmp_path / "notebooks" / "09_scale_out.ipynb").read_text()
    assert all(script in text for script in PRINTED_SCRIPTS)
    assert_solutions_pass(tmp_path, "13")
    summary = summary_of(tmp_path)
    assert summary["attack"]["naive"]["good"] < summary["attack"]["naive"]["reward"], "the judge is fooled"
    assert summary["judge"].keys() == {"before", "after"}
    assert "scale_out" not in summary and not (tmp_path / "runs").exists()
