"""The profile `slurm` on a real Slurm: the notebooks' cells for every kind, with a tiny model in the place of the hub's.

Only what costs time or the network is smaller: model, data, batches, numbers of steps and ranks. All else is the profile's.
"""

import pytest
import torch
from real_trainers import BOUND_S, ONE_THREAD

from aligner_lib.config.compose import compose, save
from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial import Workspace
from cluster import Resources, State

ONE_RANK = Resources(nodes=1, tasks_per_node=1, time="30")
SERVER = Resources(time="30", exclusive=True, linger_s=20)
PPO_JOBS = {"critic": SERVER, "actor": SERVER}
GRPO_JOBS = {"reward_model": SERVER, "actor": SERVER}
TINY = {"model.data.chat_template": None, "model.encoder_seq_length": 512}  # all that the tiny model has
BATCHES = {"model.global_batch_size": 8}
SMALLER = {
    "sft": {f"model.data.{split}_ds.global_batch_size": 8 for split in ("train", "validation")},
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


def dpo_losses(chosen, rejected, reference_chosen, reference_rejected, beta):
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -torch.nn.functional.logsigmoid(beta * margin)


@pytest.fixture
def lab(slurm, smoke, tmp_path, monkeypatch) -> Workspace:
    monkeypatch.setattr(Workspace, "model", lambda self: smoke)
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    return Workspace(tmp_path, "slurm", dataset="drawn", where="slurm")


def test_the_notebooks_cells_train_every_kind_with_the_profiles_settings(lab):
    """DPO's loss is the learner's own function, whose text lies in the run folder, which the node sees, too."""
    judges = {
        "model.environments.forms.use": "form_rules",
        "reward_model.rm_model_file": str(lab.run("rm").path),
    }
    jobs = {}
    for kind, resources, own in (
        ("sft", ONE_RANK, {}),
        ("rm", ONE_RANK, {}),
        ("dpo", ONE_RANK, {"loss": dpo_losses}),
        ("ppo", PPO_JOBS, lab.conversations()),
        ("grpo", GRPO_JOBS, lab.conversations() | judges),
    ):
        jobs[kind] = lab.submit(kind, resources=resources, **short(kind), **SMALLER[kind], **own)
        assert jobs[kind].wait(BOUND_S) == State.FINISHED

    for kind, job in jobs.items():
        run = lab.run(kind)
        assert run.status == "finished" and job.record.where == "slurm"
        assert [record["step"] for record in run.metrics()] == [0, 1, 2]
        used, profile = flatten(run.info["config"]), flatten(save(compose(kind, [], "slurm")))
        for name in ("model.optim.lr", "model.optim.sched.min_lr", "model.optim.sched.warmup_steps"):
            assert used[name] == profile[name]
    assert lab.run("ppo").info["config"]["trainer"]["ppo"]["initial_policy_kl_penalty"] == 0.02
    file = lab.run("dpo").path / "functions" / "loss.py"
    assert f"functions.loss: dpo_losses of {file}, in place of" in jobs["dpo"].log_path.read_text()
    environments = {record["environment"] for record in lab.run("grpo").rollouts()}
    assert environments == {"conversations", "forms"}
