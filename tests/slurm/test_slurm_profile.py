"""The profile `slurm` on a real Slurm: a notebook's cells from SFT to PPO, with a tiny model in the place of the hub's.

Only what costs time or the network is smaller: model, data, batches, numbers of steps and ranks. All else is the profile's.
"""

import pytest
from survivors import BOUND_S, ONE_THREAD

from aligner_lib.config.compose import compose, save
from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial import Workspace
from cluster import Resources, State

ONE_NODE = Resources(nodes=1, tasks_per_node=2, time="30")
TWO_JOBS = {name: Resources(time="30", exclusive=True, linger_s=20) for name in ("critic", "actor")}
TINY = {"model.data.chat_template": None, "model.encoder_seq_length": 512}  # all that the tiny model has
BATCHES = {"model.global_batch_size": 8}
RESPONSES = {
    "model.ppo.num_rollout_samples": 8,
    "model.ppo.num_val_samples": 4,
    "model.ppo.length_params.max_length": 12,
}


def short(kind: str) -> dict[str, object]:
    """Two steps and a validation of one batch."""
    loop = {"max_steps": 2, "val_check_interval": 2, "save_interval": 2, "limit_val_batches": 1}
    return {f"trainer.{kind}.{name}": value for name, value in loop.items()} | TINY


@pytest.fixture
def lab(slurm, smoke, tmp_path, monkeypatch) -> Workspace:
    monkeypatch.setattr(Workspace, "model", lambda self: smoke)
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    return Workspace(tmp_path, "slurm", dataset="drawn", where="slurm")


def test_a_notebooks_cells_lead_from_sft_to_ppo_with_the_profiles_settings(lab):
    files = {
        f"model.data.{split}_ds.{size}": 8
        for split in ("train", "validation")
        for size in ("global_batch_size",)
    }
    jobs = {"sft": lab.submit("sft", resources=ONE_NODE, **short("sft"), **files)}
    assert jobs["sft"].wait(BOUND_S) == State.FINISHED
    jobs["rm"] = lab.submit("rm", resources=ONE_NODE, **short("rm"), **BATCHES)
    assert jobs["rm"].wait(BOUND_S) == State.FINISHED
    settings = short("ppo") | BATCHES | RESPONSES | lab.conversations()
    jobs["ppo"] = lab.submit("ppo", resources=TWO_JOBS, **settings)
    assert jobs["ppo"].wait(BOUND_S) == State.FINISHED

    for kind, job in jobs.items():
        run = lab.run(kind)
        assert run.status == "finished" and job.record.where == "slurm"
        assert [record["step"] for record in run.metrics()] == [0, 1, 2]
        had, profile = flatten(run.info["config"]), flatten(save(compose(kind, [], "slurm")))
        for name in ("model.optim.lr", "model.optim.sched.min_lr", "model.optim.sched.warmup_steps"):
            assert had[name] == profile[name]
    assert lab.run("ppo").info["config"]["trainer"]["ppo"]["initial_policy_kl_penalty"] == 0.02
