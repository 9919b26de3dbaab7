"""GRPO as two processes: the figures and the responses of one, also where groups are drawn again and an environment fails."""

import forks
import pytest
from smoke_jobs import SmokeJobs, figures, run_smoke_job

# half of the prompts have groups that are alike, and some responses no reward
REWARD = """
def reward(prompt, response):
    if "q" in response:
        raise RuntimeError("I don't like the letter q")
    return response.count("e") if len(prompt) % 2 else 1.0
"""
LAYOUTS = {
    "dp2": {},
    "tp2": {"model__tensor_model_parallel_size": 2},
    "pp2": {"model__pipeline_model_parallel_size": 2},
}


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> dict[str, object]:
    """Settings of two steps with dynamic sampling."""
    file = tmp_path_factory.mktemp("reward") / "picky.py"
    file.write_text(REWARD)
    return {
        "trainer__grpo__max_steps": 2,
        "model__grpo__max_rollouts_per_step": 3,
        "model__environments__e__use": f"'{file}'",
    }


@pytest.fixture(scope="module")
def one(jobs: SmokeJobs, steps):
    """One process; it draws again, and meets failures."""
    run = jobs.run("grpo", "grpo_one", **steps)
    records = run.metrics()[1:]
    assert max(record["train_rollouts/groups"] for record in records) > 4
    assert all(record["train_environments/e/failed"] > 0 for record in records)
    return run


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "unshared"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grpo_on_two_processes_is_grpo_on_one(jobs, steps, one, layout, shared):
    name = f"grpo_{layout}_{shared}"
    settings = steps | LAYOUTS[layout] | {"trainer__devices": 2, "model__share_prefix": shared}
    forks.run_ranks(2, run_smoke_job, "grpo", jobs.settings("grpo", name, **settings), folder=jobs.logs(name))
    two = jobs.run_folder(name)
    assert two.status == "finished"
    for ours, theirs in zip(figures(two), figures(one), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    told = [
        sorted(
            (r["step"], r["split"], r["prompt"], r["response"], r["reward"] is None) for r in run.rollouts()
        )
        for run in (one, two)
    ]
    assert told[0] == told[1]
    assert (two.path / "environment_failures.txt").read_text().count("failed (raised)") == 1
