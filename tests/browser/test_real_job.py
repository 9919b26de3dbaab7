"""The monitor and the panel at a real PPO job, started by cluster.submit: seen live, steered, and stopped."""

import pytest
from lab import wait_for

from aligner_lib.tutorial import Workspace

SHORT_STEPS = {
    "model.global_batch_size": 8,
    "model.micro_batch_size": 8,
    "critic.model.micro_batch_size": 8,
    "model.ppo.num_rollout_samples": 8,
    "model.ppo.num_val_samples": 8,
    "model.ppo.length_params.max_length": 12,
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """The smoke profile's, with a reward model of four steps."""
    workspace = Workspace(tmp_path_factory.mktemp("real"), "smoke")
    workspace.submit("rm", **{"trainer.rm.max_steps": 4}).wait(300)
    return workspace


@pytest.fixture
def job(workspace, request):
    """A PPO job that would go on for long."""
    name = request.node.name
    settings = {"trainer.ppo.max_steps": 5000, "trainer.ppo.save_interval": 5000} | SHORT_STEPS
    job = workspace.submit("ppo", name, **settings)
    wait_for(lambda: len(workspace.run(name).metrics()) > 2, 300, f"PPO did not begin: {job.tail()}")
    yield job
    job.cancel()


def cell(name: str, job) -> str:
    return f"from cluster import Job\nfrom widgets import *\njob = Job.attach({str(job.run)!r})\n{name}(job.run, job=job)"


def test_live(page, workspace, job):
    """Records of a real run reach the chart while it trains."""
    run = workspace.run(job.run.name)
    page.show("real-live.ipynb", cell("Monitor", job))
    page.wait_for_points(1)
    page.wait_for_points(int(max(page.points())) + 22)
    assert job.state == "RUNNING" and run.status == "running"


def test_the_panel_steers_it(page, workspace, job):
    run = workspace.run(job.run.name)
    page.show("real-panel.ipynb", cell("JobPanel", job))
    panel = page.page.locator(".lab-panel")
    assert panel.locator(".lab-state").inner_text() == "running"

    panel.get_by_role("button", name="Checkpoint now").click()
    first = wait_for(run.latest_checkpoint, 60, "no checkpoint")

    for label, metric, value in (
        ("KL coefficient", "train_rollouts/kl_coef", "0.05"),
        ("learning rate", "train_optim/lr", "0.0002"),
    ):
        panel.get_by_label(label, exact=True).fill(value)
        panel.get_by_role("button", name=f"set {label}").click()
        wait_for(
            lambda m=metric, v=value: run.series(m)[1][-1] == float(v), 60, f"{label} was not taken over"
        )
        name = metric.rpartition("/")[2]
        panel.get_by_text(
            f"changed from step {run.series(metric)[1].index(float(value)) + 1} on: {name} = "
        ).wait_for()
    assert list((run.path / "control").iterdir()) == []

    (run.path / "control" / "set.json").write_text('{"kl_coef": -1}')
    panel.get_by_text("not changed: kl_coef=-1, for it takes a number that is not negative").wait_for()
    assert run.series("train_rollouts/kl_coef")[1][-1] == 0.05

    panel.get_by_role("button", name="Stop after this step").click()
    wait_for(lambda: run.status == "stopped", 60, "the run did not stop")
    wait_for(lambda: job.state.final, 60, "its process did not end")
    assert run.latest_checkpoint() != first
    assert run.latest_checkpoint().name == f"step_{run.metrics()[-1]['step']:06d}"
    panel.get_by_text("finished").first.wait_for()
