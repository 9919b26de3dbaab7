"""Notebook 09 through papermill, with every job on a real Slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import Job, State
from cluster.sweep import Sweep

ROOT = Path(__file__).parents[2]
BOUND_S = 1200


@pytest.fixture(scope="module")
def tutorial(whole_module, tmp_path_factory) -> Path:
    """Notebook 09, which trains SFT on one node, on several, and as a sweep."""
    out = tmp_path_factory.mktemp("tutorial")
    words = ["tutorial", "--profile", "smoke", "--only", "09", "--out", str(out), "-p", "where=slurm"]
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


@pytest.mark.parametrize(("run", "nodes"), [("scale-one", 1), ("scale-several", 2)])
def test_each_run_was_a_slurm_job(slurm, tutorial, run, nodes):
    job = Job.attach(tutorial / "runs" / run)
    assert (job.record.where, job.record.nodes, job.state) == ("slurm", nodes, State.FINISHED)
    assert "ranks, rendezvous at n" in job.log_path.read_text()


def test_several_nodes_learn_what_one_does(tutorial):
    scaled = json.loads((tutorial / "summary.json").read_text())["scale_out"]
    assert scaled["ranks"] == 4
    assert scaled["largest_difference"] < 1e-5


def test_the_sweep_was_one_array_and_is_compared(tutorial):
    sweep = Sweep.attach(tutorial / "runs" / "sft-lr")
    assert [job.record.id.rpartition("_")[2] for job in sweep.jobs.values()] == ["0", "1"]
    rows = sweep.table(["validation/loss"])
    assert [row["member"] for row in rows] == ["lr-0.0003", "lr-0.003"]
    assert rows[0]["validation/loss"] > rows[1]["validation/loss"] > 0
