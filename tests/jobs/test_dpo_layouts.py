"""DPO and KTO as two processes: the figures of one, with shared prompts and without."""

import forks
import pytest
from smoke_jobs import figures, run_smoke_job

STEPS = {"trainer__dpo__max_steps": 3, "model__micro_batch_size": 4}
LAYOUTS = {
    "dp2": {},
    "tp2": {"model__tensor_model_parallel_size": 2},
    "pp2": {"model__pipeline_model_parallel_size": 2},
}


@pytest.fixture(scope="module", params=["dpo", "kto"])
def one(request, jobs):
    """A short run of one process, and its loss."""
    loss = request.param
    return loss, jobs.run("dpo", f"{loss}_one", model__dpo__preference_loss=loss, **STEPS)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "unshared"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_learn_what_one_does(jobs, one, layout, shared):
    loss, alone = one
    name = f"{loss}_{layout}_{shared}"
    settings = {"model__dpo__preference_loss": loss, "model__share_prefix": shared, "trainer__devices": 2}
    settings = jobs.settings("dpo", name, **STEPS, **LAYOUTS[layout], **settings)
    forks.run_ranks(2, run_smoke_job, "dpo", settings, folder=jobs.logs(name))
    two = jobs.run_folder(name)
    assert two.status == "finished"
    for ours, theirs in zip(figures(two), figures(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
