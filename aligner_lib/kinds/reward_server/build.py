"""Builds a reward model in a separate job, from its settings."""

from __future__ import annotations

from omegaconf import DictConfig

from aligner_lib.kinds.build_models import build_reward_model
from aligner_lib.kinds.inputs import model_folder
from aligner_lib.kinds.serving import Serving, serving
from aligner_lib.remote_critic.worker import Worker


def prepare(config: DictConfig) -> Serving:
    """Prepare a server for a reward model without a critic."""
    start = model_folder(config, "rm_model_file", "scalar", serves=True)

    def make():
        return Worker(None, build_reward_model(config, start, config.inference.micro_batch_size))

    return serving(make, "reward_model", False, start, {"gives": ["rewards"]})
