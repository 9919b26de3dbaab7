"""Builds PPO's critic in a separate job, from its settings."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from aligner_lib.kinds.build_models import build_critic
from aligner_lib.kinds.inputs import model_folder
from aligner_lib.kinds.serving import Serving, serving
from aligner_lib.remote_critic.worker import Worker


def prepare(config: DictConfig) -> Serving:
    """Prepare a server for the critic, and for the reward model if both share the server."""
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "scalar", serves=True)
    combined = config.trainer.ppo.combine_rm_and_critic_server

    def make():
        return Worker(*build_critic(config, start, judges=combined))

    about = {
        "optim": OmegaConf.to_container(config.model.optim),
        "gives": ["values"] + ["rewards"] * combined,
    }
    return serving(make, "critic", True, start, about)
