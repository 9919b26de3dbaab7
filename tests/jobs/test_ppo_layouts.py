"""PPO as two processes: the figures and the responses of one."""

import subprocess
import sys

import forks
import pytest
from smoke_jobs import SmokeJobs, figures, run_smoke_job

from aligner_lib.run_folder.reader import RunFolder

STEPS = {"trainer__ppo__max_steps": 3}


@pytest.fixture(scope="module")
def one(jobs) -> RunFolder:
    return jobs.run("ppo", "ppo_one", **STEPS)


def by_command(jobs: SmokeJobs, run: str, settings: list[str]) -> None:
    """As a user starts it: the command starts itself again under torch's launcher."""
    command = [sys.executable, "-m", "aligner_lib", "ppo", "--profile", "smoke", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=forks.BOUND_S)
    assert done.returncode == 0, done.stderr


def by_forks(jobs: SmokeJobs, run: str, settings: list[str]) -> None:
    logs = jobs.out / f"{run}_logs"
    logs.mkdir()
    forks.run_ranks(2, run_smoke_job, "ppo", settings, folder=logs)


@pytest.mark.parametrize(
    ("layout", "sizes", "start"),
    [
        ("dp2", {}, by_command),
        (
            "tp2",
            {"model__tensor_model_parallel_size": 2},
            by_forks,
        ),
        (
            "pp2",
            {"model__pipeline_model_parallel_size": 2},
            by_forks,
        ),
    ],
)
def test_ppo_on_two_processes_is_ppo_on_one(jobs, one, layout, sizes, start):
    settings = jobs.settings("ppo", layout, **STEPS, **sizes, trainer__devices=2)
    start(jobs, layout, settings)
    two = jobs.run_folder(layout)
    assert two.status == "finished"
    for ours, theirs in zip(figures(two), figures(one), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4, rel=1e-4)
    texts = [
        sorted((r["step"], r["split"], r["prompt"], r["response"]) for r in run.rollouts())
        for run in (one, two)
    ]
    assert texts[0] == texts[1]
