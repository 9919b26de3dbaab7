"""Notebook 09 without a cluster, as a user runs it."""

import json

import pytest
from tutorial_runs import run_tutorial, runs_notebooks


@runs_notebooks
@pytest.mark.parametrize(("where", "gpus"), [("print", 8), ("local", 0)])
def test_scaling_out_runs_without_a_cluster(tmp_path, where, gpus):
    """On paper only, and on this machine: several ranks learn what one does."""
    run_tutorial(tmp_path, "--only", "09", "-p", f"where={where}", "-p", f"gpus_per_node={gpus}")
    text = (tmp_path / "notebooks" / "09_scale_out.ipynb").read_text()
    assert "#SBATCH --nodes=2" in text and "#SBATCH hetjob" in text
    assert "| Llama-2-70B | actor | 32 | 8 × 2 × 2 |" in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    if where == "print":
        assert not (tmp_path / "runs").exists() and "scale_out" not in summary
    else:
        assert summary["scale_out"]["ranks"] == 2
        several = json.loads((tmp_path / "runs" / "scale-several" / "run.json").read_text())
        assert several["status"] == "finished"
        assert several["config"]["trainer"]["devices"] == 2  # which a single process refuses: test_failures
        assert summary["scale_out"]["largest_difference"] < 1e-5
