"""PPO's critic and its initial reward model, in a separate job behind a PyTriton server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aligner_lib.config.kind import JobKind
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.schema import (
    NO_GENERATION,
    ExpManager,
    Optim,
    PretrainedCheckpoint,
    Sched,
    Trainer,
    above,
    at_least,
    setting,
    within,
)
from aligner_lib.config.training import ScalarModel


@dataclass
class ScoringSettings:
    """trainer.ppo of a critic or a reward model: settings for scoring sequences."""

    inference_micro_batch_size: int = setting(4, at_least(1))
    """Sequences in a forward pass of the critic or the reward model."""


@dataclass
class CriticPPO(ScoringSettings):
    """trainer.ppo of the critic's job."""

    port: int = setting(5556, within(0, 65535))
    """The server's port; 0: a free port."""
    address: str | None = None
    """The address that the server listens on; null: loopback or, in a Slurm job, the node's own address."""
    actor_timeout: float = setting(600.0, above(0))
    """Seconds without a request from the actor until the server ends."""
    combine_rm_and_critic_server: bool = True
    """False: the reward model has a separate server (serve-rm)."""
    gradient_clip_val: float = setting(1.0, at_least(0))
    """The norm of the critic's gradient is clipped to this value; 0: no clipping."""


@dataclass
class CriticTrainerGroup(Trainer):
    """trainer of the critic's job."""

    ppo: CriticPPO = field(default_factory=CriticPPO)


@dataclass
class CriticModel(ScalarModel):
    """model of the critic's job."""

    new_head: bool = False
    """True: start from the reward model's weights with a head of zeros, so that the values begin at 0. The reward model was
    trained on complete answers, so its score for a prefix means nothing."""
    loss_clip_val: float = 0.2
    """The loss of an update clips values to this distance from the rollout's values; <= 0: no clipping."""
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-6, sched=Sched(min_lr=9e-7)))
    offload_adam_states: bool = True
    """Adam's moments stay on the CPU between updates."""


@dataclass
class CriticConfig:
    """All settings of `aligner serve-critic`."""

    trainer: CriticTrainerGroup = field(default_factory=CriticTrainerGroup)
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    """The reward model."""
    model: CriticModel = field(default_factory=CriticModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)


_AS_ITS_ACTOR = "a critic goes on, begins anew and saves with its actor: set this there."
SERVED = {
    "model.encoder_seq_length": "samples come from the actor, as long as its model.encoder_seq_length.",
    "model.seed": "a server draws no random numbers and no new weights.",
    "model.global_batch_size": "batches come from the actor, whose model.global_batch_size is a train step's.",
    **NO_GENERATION,
}
"""The settings without effect in a server, with the reasons."""

KIND = JobKind(
    name="critic",
    command="serve-critic",
    summary="PPO's critic and reward model as a job of their own, which `ppo` finds by remote_critic_rm.critic.",
    schema=CriticConfig,
    build="aligner_lib.kinds.critic.build:prepare",
    run="aligner_lib.jobs.serve_critic:serve_job",
    defaults="ppo.critic",
    without_effect=lambda config: (
        SERVED
        | dict.fromkeys(
            (
                "exp_manager.resume_if_exists",
                "exp_manager.stop_after",
                "exp_manager.resume_ignore_no_checkpoint",
                "exp_manager.create_checkpoint_callback",
                "exp_manager.checkpoint_callback_params.monitor",
                "exp_manager.checkpoint_callback_params.save_best",
                "exp_manager.checkpoint_callback_params.mode",
            ),
            _AS_ITS_ACTOR,
        )
    ),
    stage=4,
    **declared_in(Path(__file__).parent),
)
