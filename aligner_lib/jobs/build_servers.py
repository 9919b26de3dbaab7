"""What PPO's servers serve, from their settings: the critic's job and the reward model's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.build_models import build_critic, build_reward_model
from aligner_lib.jobs.inputs import model_folder
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.remote_critic.worker import Worker


@dataclass(frozen=True)
class Serving:
    """What a server's job serves, ready but for its model: `make` builds this rank's part."""

    make: Callable[[], Worker]
    vocab_size: int
    hashes: dict[str, str]
    about: dict  # what an actor has to know of it


def critic_server(config: DictConfig) -> Serving:
    """Critic and reward model, or the critic alone."""
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "scalar", serves=True)
    combined = config.trainer.ppo.combine_rm_and_critic_server

    def make():
        return Worker(*build_critic(config, start, judges=combined))

    about = {
        "optim": OmegaConf.to_container(config.model.optim),
        "gives": ["values"] + ["rewards"] * combined,
    }
    return _serving(make, start, about)


def reward_server(config: DictConfig) -> Serving:
    """A reward model alone."""
    start = model_folder(config, "rm_model_file", "scalar", serves=True)

    def make():
        return Worker(None, build_reward_model(config, start, config.inference.micro_batch_size))

    return _serving(make, start, {"gives": ["rewards"]})


def _serving(make: Callable[[], Worker], start: Path, about: dict) -> Serving:
    architecture = Architecture.load(start)
    about = about | {
        "model": str(start),
        "tokenizer": Tokenizer(start).hash,
        "positions": architecture.max_position_embeddings,
    }
    return Serving(make, architecture.vocab_size, {"model": model_hash(start)}, about)
