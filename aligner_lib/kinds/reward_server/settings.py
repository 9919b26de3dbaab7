"""A reward model without a critic, in a separate job behind a PyTriton server."""

from __future__ import annotations

from dataclasses import dataclass, field

from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import ExpManager, Model, Trainer, above, at_least, setting, within
from aligner_lib.kinds.critic.settings import SERVED


@dataclass
class Inference:
    """inference: the server's computation, address and timeout."""

    micro_batch_size: int = setting(4, at_least(1))
    """Sequences in a forward pass."""
    port: int = setting(5555, within(0, 65535))
    """The server's port; 0: a free port."""
    address: str | None = None
    """The address that the server listens on; null: loopback or, in a Slurm job, the node's own address."""
    actor_timeout: float = setting(600.0, above(0))
    """Seconds without a request from the run until the server ends."""


@dataclass
class RewardServerConfig:
    """All settings of `aligner serve-rm`."""

    rm_model_file: str | None = None
    """The reward model: a model folder, checkpoint or run folder."""
    inference: Inference = field(default_factory=Inference)
    trainer: Trainer = field(default_factory=Trainer)
    model: Model = field(default_factory=Model)
    exp_manager: ExpManager = field(default_factory=ExpManager)


_NOT_TRAINED = "a reward model that serves is not trained and saves nothing."

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
            "model.micro_batch_size": "inference.micro_batch_size is the number of sequences in a forward pass."
        }
        | dict.fromkeys(
            (
                "model.optim.",
                "model.activations_checkpoint_granularity",
                "model.activations_checkpoint_method",
                "model.activations_checkpoint_num_layers",
                "exp_manager.resume_if_exists",
                "exp_manager.stop_after",
                "exp_manager.resume_ignore_no_checkpoint",
                "exp_manager.create_checkpoint_callback",
                "exp_manager.checkpoint_callback_params.",
            ),
            _NOT_TRAINED,
        )
    ),
    stage=5,
)
