"""PPO's critic, with the reward model that it begins as, as a job of its own behind a PyTriton server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aligner_lib.config.kind import JobKind
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.config.peft import Peft
from aligner_lib.config.schema import (
    ExpManager,
    Model,
    Optim,
    PretrainedCheckpoint,
    Sched,
    Trainer,
    above,
    at_least,
    setting,
    within,
)


@dataclass
class CriticPPO:
    """trainer.ppo of the critic's job."""

    inference_micro_batch_size: int = setting(
        4, at_least(1)
    )  # sequences in one forward of critic or reward model
    port: int = setting(5556, within(1, 65535))
    address: str | None = None  # to listen on; None: loopback, in a Slurm job the node's own
    # seconds without a word from the actor, after which the server ends
    actor_timeout: float = setting(600.0, above(0))
    combine_rm_and_critic_server: bool = True  # False: the reward model has a server of its own (serve-rm)
    gradient_clip_val: float = setting(1.0, at_least(0))


@dataclass
class CriticTrainerGroup(Trainer):
    """trainer of the critic's job."""

    ppo: CriticPPO = field(default_factory=CriticPPO)


@dataclass
class CriticModel(Model):
    """model of the critic's job."""

    # True: the reward model's weights with a head of zeros, so that the values begin at 0. What a reward model says of an answer
    # that has only begun was never trained, and can be worse than nothing
    new_head: bool = False
    # values may move this far from the rollout's in one update's loss; <= 0: not clipped
    loss_clip_val: float = 0.2
    # how many of the last layers are trained, with the norm and the head above them; null: all weights are. Below them nothing
    # is computed backwards
    num_layers_unfrozen: int | None = setting(None, at_least(1))
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-6, sched=Sched(min_lr=9e-7)))
    peft: Peft = field(default_factory=Peft)
    offload_adam_states: bool = True  # Adam's moments wait on the CPU while nothing is trained


@dataclass
class CriticConfig:
    """All settings of `aligner serve-critic`."""

    trainer: CriticTrainerGroup = field(default_factory=CriticTrainerGroup)
    # the reward model
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    model: CriticModel = field(default_factory=CriticModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)


_AS_ITS_ACTOR = "a critic goes on, begins anew and saves with its actor: set this there."
SERVED = {
    "model.encoder_seq_length": "samples come from the actor, as long as its model.encoder_seq_length.",
    "model.seed": "nothing is drawn here, and no weights are new.",
    "model.global_batch_size": "batches come from the actor, whose model.global_batch_size is a train step's.",
}  # what does nothing in a server

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
                "exp_manager.resume_ignore_no_checkpoint",
                "exp_manager.create_checkpoint_callback",
            ),
            _AS_ITS_ACTOR,
        )
    ),
    stage=4,
    **declared_in(Path(__file__).parent),
)
