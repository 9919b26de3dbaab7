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
CELL = """
from cluster import Job
import widgets
job = Job.attach({!r})
display(widgets.Monitor(job.run, job=job), widgets.JobPanel(job.run, job=job))
"""


@pytest.fixture
def job(tmp_path):
    """A PPO job of the smoke profile that would go on for long, with a reward model of four steps."""
    workspace = Workspace(tmp_path, "smoke")
    workspace.submit("rm", **{"trainer.rm.max_steps": 4}).wait(300)
    settings = {"trainer.ppo.max_steps": 5000, "trainer.ppo.save_interval": 5000} | SHORT_STEPS
    job = workspace.submit("ppo", "long", **settings)
    wait_for(lambda: len(workspace.run("long").metrics()) > 2, f"PPO did not begin: {job.tail()}")
    yield job, workspace.run("long")
    job.cancel()


def test_a_real_run_is_live_in_its_monitor_and_steered_by_its_panel(page, job):
    job, run = job
    page.show("real.ipynb", CELL.format(str(job.run)))
    page.wait_for_points(1)
    page.wait_for_points(int(max(page.points())) + 12)
    assert job.state == "RUNNING" and run.status == "running"
    panel = page.page.locator(".lab-panel")
    assert panel.locator(".lab-state").inner_text() == "running"

    panel.get_by_role("button", name="Checkpoint now").click()
    first = wait_for(run.latest_checkpoint, "no checkpoint")

    for label, metric, value in (
        ("KL coefficient", "train_rollouts/kl_coef", "0.05"),
        ("learning rate", "train_optim/lr", "0.0002"),
    ):
        panel.get_by_label(label, exact=True).fill(value)
        panel.get_by_role("button", name=f"set {label}").click()
        wait_for(lambda m=metric, v=value: run.series(m)[1][-1] == float(v), f"{label} was not taken over")
        step = run.series(metric)[1].index(float(value)) + 1
        panel.get_by_text(f"changed from step {step} on: {metric.rpartition('/')[2]} = ").wait_for()
    assert list((run.path / "control").iterdir()) == []

    (run.path / "control" / "set.json").write_text('{"kl_coef": -1}')
    panel.get_by_text("not changed: kl_coef=-1, for it takes a number that is not negative").wait_for()
    assert run.series("train_rollouts/kl_coef")[1][-1] == 0.05

    panel.get_by_role("button", name="Stop after this step").click()
    wait_for(lambda: run.status == "stopped", "the run did not stop")
    wait_for(lambda: job.state.final, "its process did not end")
    assert run.latest_checkpoint() != first
    assert run.latest_checkpoint().name == f"step_{run.metrics()[-1]['step']:06d}"
    panel.get_by_text("finished").first.wait_for()


BRANCHED = """
from aligner_lib.tutorial import Workspace
from widgets import Monitor
lab = Workspace({!r}, "smoke")
Monitor(lab.run("sft"), branch=lab.branch)
"""


def test_the_monitor_of_a_run_that_is_over_starts_a_branch_and_draws_it_beside_the_run(page, tmp_path):
    workspace = Workspace(tmp_path, "smoke")
    workspace.submit("sft", **{"trainer.sft.max_steps": 6, "trainer.sft.save_interval": 3}).wait(300)
    page.show("branched.ipynb", BRANCHED.format(str(tmp_path)))
    form = page.page.locator(".lab-branch")
    assert form.get_by_label("Go on from step").input_value() == "3"
    form.get_by_label("with").fill("model.optim.lr")
    form.get_by_label("=").fill("much")
    form.get_by_role("button").click()
    form.get_by_text("model.optim.lr").wait_for()  # the job's own words, and no run
    assert not workspace.run("sft-at-3-lr-much").path.exists()

    form.get_by_label("=").fill("1e-5")
    form.get_by_label("=").press("Enter")
    branch = workspace.run("sft-at-3-lr-1e-05")
    wait_for(lambda: branch.status == "finished", "the branch did not finish")
    legend = page.page.locator(".lab-legend-run")
    legend.nth(1).wait_for()
    assert legend.all_inner_texts() == ["sft", branch.name]
    page.page.locator(".lab-comparison").get_by_text("model.optim.lr").first.wait_for(state="attached")
