"""The profile `slurm` on a real Slurm: the notebooks' cells for every kind, with a tiny model in the place of the hub's.

Only what costs time or the network is smaller: model, data, batches, numbers of steps and ranks. All else is the profile's.
"""

import pytest
from survivors import BOUND_S, ONE_THREAD

from aligner_lib.config.compose import compose, save
from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial import Workspace
from cluster import Resources, State

ONE_RANK = Resources(nodes=1, tasks_per_node=1, time="30")
TWO_RANKS = ONE_RANK.but(tasks_per_node=2)  # share an environment
TWO_JOBS = {name: Resources(time="30", exclusive=True, linger_s=20) for name in ("critic", "actor")}
TINY = {"model.data.chat_template": None, "model.encoder_seq_length": 512}  # all that the tiny model has
BATCHES = {"model.global_batch_size": 8}
SMALLER = {
    "rm": BATCHES,
    "dpo": BATCHES | {"model.dpo.num_val_samples": 4, "model.dpo.val_response_length": 12},
    "ppo": BATCHES
    | {
        "model.ppo.num_rollout_samples": 8,
        "model.ppo.num_val_samples": 4,
        "model.ppo.length_params.max_length": 12,
    },
    "grpo": BATCHES
    | {
        "model.grpo.num_prompts_per_step": 2,
        "model.grpo.num_generations_per_prompt": 4,
        "model.grpo.num_val_samples": 4,
        "model.grpo.length_params.max_length": 12,
    },
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


def test_the_notebooks_cells_train_every_kind_with_the_profiles_settings(lab):
    files = {f"model.data.{split}_ds.global_batch_size": 8 for split in ("train", "validation")}
    jobs = {"sft": lab.submit("sft", resources=ONE_RANK, **short("sft"), **files)}
    assert jobs["sft"].wait(BOUND_S) == State.FINISHED
    for kind, resources, own in (
        ("rm", ONE_RANK, {}),
        ("dpo", ONE_RANK, {}),
        ("ppo", TWO_JOBS, lab.conversations()),
        ("grpo", TWO_RANKS, {"model.environments.forms.use": "form_rules"}),
    ):
        jobs[kind] = lab.submit(kind, resources=resources, **short(kind), **SMALLER[kind], **own)
        assert jobs[kind].wait(BOUND_S) == State.FINISHED

    for kind, job in jobs.items():
        run = lab.run(kind)
        assert run.status == "finished" and job.record.where == "slurm"
        assert [record["step"] for record in run.metrics()] == [0, 1, 2]
        had, profile = flatten(run.info["config"]), flatten(save(compose(kind, [], "slurm")))
        for name in ("model.optim.lr", "model.optim.sched.min_lr", "model.optim.sched.warmup_steps"):
            assert had[name] == profile[name]
    assert lab.run("ppo").info["config"]["trainer"]["ppo"]["initial_policy_kl_penalty"] == 0.02
