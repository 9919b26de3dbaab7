"""A reward model alone, as a job of its own behind a PyTriton server."""

from __future__ import annotations

from dataclasses import dataclass, field

from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import ExpManager, Model, Trainer, above, at_least, setting, within
from aligner_lib.kinds.critic.settings import SERVED


@dataclass
class Inference:
    """How the server computes, and where it listens."""

    micro_batch_size: int = setting(4, at_least(1))  # sequences in one forward
    port: int = setting(5555, within(1, 65535))
    address: str | None = None  # as trainer.ppo.address of the critic
    actor_timeout: float = setting(600.0, above(0))


@dataclass
class RewardServerConfig:
    """All settings of `aligner serve-rm`."""

    rm_model_file: str | None = None  # the reward model: model folder, checkpoint or run folder
    inference: Inference = field(default_factory=Inference)
    trainer: Trainer = field(default_factory=Trainer)
    model: Model = field(default_factory=Model)
    exp_manager: ExpManager = field(default_factory=ExpManager)


_NOT_TRAINED = "a reward model that serves is not trained, and has nothing to save."

KIND = JobKind(
    name="reward_server",
    command="serve-rm",
    summary="A reward model alone as a job of its own, which `ppo` finds by remote_critic_rm.reward_model, `grpo` by "
    "remote_rm.",
    schema=RewardServerConfig,
    build="aligner_lib.kinds.reward_server.build:prepare",
    run="aligner_lib.jobs.serve_critic:serve_job",
    without_effect=lambda config: (
        SERVED
        | {
            "model.micro_batch_size": "inference.micro_batch_size is how many sequences are computed together."
        }
        | dict.fromkeys(
            (
                "model.optim.",
                "model.activations_checkpoint_granularity",
                "model.activations_checkpoint_method",
                "model.activations_checkpoint_num_layers",
                "exp_manager.resume_if_exists",
                "exp_manager.resume_ignore_no_checkpoint",
                "exp_manager.create_checkpoint_callback",
                "exp_manager.checkpoint_callback_params.",
            ),
            _NOT_TRAINED,
        )
    ),
    stage=5,
)
