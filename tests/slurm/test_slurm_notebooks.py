"""The notebooks through papermill, with every job on a real Slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aligner_lib.run_folder.reader import RunFolder
from cluster import Job, State
from cluster.sweep import Sweep

ROOT = Path(__file__).parents[2]
RUNS = ("scale-one", "rm", "ppo")
BOUND_S = 1200


@pytest.fixture(scope="module")
def tutorial(whole_module, tmp_path_factory) -> Path:
    """Notebooks 05, which has a reward model trained first, and 09, which trains SFT."""
    out = tmp_path_factory.mktemp("tutorial")
    words = ["tutorial", "--profile", "smoke", "--only", "05,09", "--out", str(out), "-p", "where=slurm"]
    done = subprocess.run(
        [sys.executable, "-m", "aligner_lib", *words],
        cwd=ROOT,
        env={**os.environ, "SLURM_CONF": str(whole_module.conf)},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.mark.parametrize("run", RUNS)
def test_each_run_was_a_slurm_job(slurm, tutorial, run):
    job = Job.attach(tutorial / "runs" / run)
    assert job.record.where == "slurm"
    assert job.state == State.FINISHED
    assert "ranks, rendezvous at n" in job.log_path.read_text()


def test_the_figures_are_those_of_any_other_place(tutorial):
    summary = json.loads((tutorial / "summary.json").read_text())
    assert RunFolder(tutorial / "runs" / "rm").series("validation/acc")[1][-1] >= 0.9
    assert summary["ppo"]["val_reward_ppo"] > summary["ppo"]["val_reward_sft"]


def test_the_way_to_several_nodes_was_walked_for_real(tutorial):
    scaled = json.loads((tutorial / "summary.json").read_text())["scale_out"]
    assert scaled["ranks"] == 4
    assert scaled["largest_difference"] < 1e-4
    job = Job.attach(tutorial / "runs" / "scale-several")
    assert (job.record.where, job.record.nodes) == ("slurm", 2)


def test_the_sweep_was_one_array_and_is_compared(tutorial):
    sweep = Sweep.attach(tutorial / "runs" / "sft-lr")
    assert [job.record.id.rpartition("_")[2] for job in sweep.jobs.values()] == ["0", "1"]
    rows = sweep.table(["validation/loss"])
    assert [row["member"] for row in rows] == ["lr-0.0003", "lr-0.003"]
    assert rows[0]["validation/loss"] > rows[1]["validation/loss"] > 0
