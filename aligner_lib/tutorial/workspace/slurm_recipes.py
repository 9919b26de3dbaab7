"""NeMo-Aligner's three Slurm scripts for a model with 2 B parameters, as functions with the same hyperparameters.

    site = {"account": "course", "partition": "batch"}
    sft("/shared/runs/sft", model="/shared/2b", train=…, validation=…, where="print", site=site)

Each function returns the result of `cluster.submit`, and has these keywords:

    where         a scheduler (slurm, local, or your own), or print
    resources     a file name in cluster/configs, a path, or Resources; by default RESOURCES
    site          the values that differ from cluster to cluster (account, partition, container_image,
                  container_mounts, …), for every component. Your own `resources` win over them; setup lines and
                  flags of both hold
    **settings    further settings: `**{"model.optim.lr": 1e-5}`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aligner_lib.config.kinds import kind_of
from aligner_lib.jobs.command_line import Settings, job_commands

PROJECT = "aligner-lab"
CRITIC_PORT = 5567
RESOURCES = {"sft": "one_node", "rm": "four_nodes", "ppo": "ppo_1_1"}

SFT = {
    "trainer.precision": "bf16",
    "trainer.sft.max_steps": -1,
    "trainer.sft.limit_val_batches": 40,
    "trainer.sft.val_check_interval": 1000,
    "trainer.sft.save_interval": 50,
    "model.megatron_amp_O2": True,
    "model.optim.lr": 5e-6,
    "model.answer_only_loss": True,
    "model.data.num_workers": 0,
    "model.data.train_ds.micro_batch_size": 1,
    "model.data.train_ds.global_batch_size": 128,
    "model.data.validation_ds.micro_batch_size": 1,
    "model.data.validation_ds.global_batch_size": 128,
    "exp_manager.create_wandb_logger": True,
    "exp_manager.resume_if_exists": True,
    "exp_manager.resume_ignore_no_checkpoint": True,
    "exp_manager.create_checkpoint_callback": True,
    "exp_manager.checkpoint_callback_params.save_nemo_on_train_end": True,
    "exp_manager.checkpoint_callback_params.monitor": "validation_loss",
}
REWARD_MODEL = {
    "model.micro_batch_size": 1,
    "model.global_batch_size": 512,
    "model.data.data_impl": "jsonl",
    "trainer.rm.save_interval": 500,
    "trainer.rm.val_check_interval": 100,
    "trainer.rm.limit_val_batches": 100_000,
    "exp_manager.create_wandb_logger": True,
}
CRITIC = {
    "trainer.ppo.inference_micro_batch_size": 4,
    "trainer.ppo.port": CRITIC_PORT,
    "model.offload_adam_states": True,
    "model.micro_batch_size": 1,
    "model.global_batch_size": 64,
    "exp_manager.create_wandb_logger": True,
}
ACTOR = {
    "trainer.ppo.max_steps": 15,
    "trainer.ppo.val_check_interval": 3,
    "trainer.ppo.initial_policy_kl_penalty": 0.02,
    "model.data.data_impl": "jsonl",
    "model.micro_batch_size": 1,
    "model.global_batch_size": 64,
    "model.activations_checkpoint_granularity": "selective",
    "model.activations_checkpoint_method": "uniform",
    "model.optim.lr": 9e-7,
    "model.optim.sched.min_lr": 9e-8,
    "model.ppo.entropy_bonus": 0.0,
    "model.ppo.ratio_eps": 0.2,
    "model.ppo.num_rollout_samples": 512,
    "model.ppo.rollout_micro_batch_size": 8,
    "model.ppo.length_params.max_length": 1024,
    "remote_critic_rm.critic.port": CRITIC_PORT,
    "exp_manager.create_wandb_logger": True,
}


def sft(run: Path | str, *, model: Path | str, train: Path | str, validation: Path | str, **more):
    """Supervised fine-tuning on Dolly, on a node with 8 GPUs.

    more: where="slurm", resources="one_node", site=None, and settings.
    """
    own = {
        **SFT,
        **_named("dolly_sft_run"),
        "model.restore_from_path": model,
        "model.data.train_ds.file_path": train,
        "model.data.validation_ds.file_path": validation,
    }
    return _submit("sft", run, own, **more)


def reward_model(run: Path | str, *, policy: Path | str, train: Path | str, validation: Path | str, **more):
    """A reward model on HH's comparisons, initialised from the SFT policy, on 4 nodes with 8 GPUs each.

    more: where="slurm", resources="four_nodes", site=None, and settings.
    """
    own = {**REWARD_MODEL, **_named("rm_training"), **_data(train, validation)}
    own["pretrained_checkpoint.restore_from_path"] = policy
    return _submit("rm", run, own, **more)


def ppo(
    run: Path | str,
    *,
    policy: Path | str,
    reward_model: Path | str,
    train: Path | str,
    validation: Path | str,
    **more,
):
    """PPO on HH's prompts as a heterogeneous Slurm job of two nodes with 8 GPUs each.

    The first node runs the critic and the reward model, the second node runs the actor and the reference.
    more: where="slurm", resources="ppo_1_1", site=None, and settings. The names of the critic's settings begin with `critic.`.
    """
    critic = {**CRITIC, **_named("2p_ppo_critic"), "pretrained_checkpoint.restore_from_path": reward_model}
    actor = {**ACTOR, **_named("2p_ppo_actor"), **_data(train, validation)}
    actor["pretrained_checkpoint.restore_from_path"] = policy
    own = actor | {f"critic.{key}": value for key, value in critic.items()}
    return _submit("ppo", run, own, **more)


def _named(name: str) -> dict[str, str]:
    at = "exp_manager.wandb_logger_kwargs"
    return {f"{at}.project": PROJECT, f"{at}.name": name}


def _data(train: Path | str, validation: Path | str) -> dict[str, object]:
    files = {"train": [train], "validation": [validation], "test": [validation]}
    return {"model.data.data_prefix": files}


def _submit(
    kind: str,
    run: Path | str,
    own: Settings,
    *,
    where: str = "slurm",
    resources=None,
    site: Mapping | None = None,
    **settings,
):
    from cluster import submit
    from cluster.record import MAIN
    from cluster.resources import by_component

    names = list(kind_of(kind).components) or [MAIN]
    resources = by_component(RESOURCES[kind] if resources is None else resources, names, site)
    return submit(job_commands(kind, run, {**own, **settings}, resources), run, where, resources)
