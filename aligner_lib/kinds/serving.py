"""The result of a server's build.py: a model for actors' requests, before the model is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.remote_critic.worker import Worker


@dataclass(frozen=True)
class Serving:
    """The model of a server's job before it is built. `make` builds the rank's part."""

    make: Callable[[], Worker]
    service: str
    """The name of the service in the server's announcement: `critic` or `reward_model`."""
    is_trained: bool
    """Whether an actor trains the model, so that the server writes checkpoints."""
    vocab_size: int
    hashes: dict[str, str]
    about: dict
    """Facts about the server for the actor."""


def serving(make: Callable[[], Worker], service: str, is_trained: bool, start: Path, about: dict) -> Serving:
    """Describe a server whose model starts from the folder `start`. about: the kind's own facts for the actor."""
    architecture, hashes = Architecture.load(start), {"model": model_hash(start)}
    about = about | {
        "model": str(start),
        "hash": hashes["model"],
        "tokenizer": Tokenizer(start).hash,
        "positions": architecture.max_position_embeddings,
    }
    return Serving(make, service, is_trained, architecture.vocab_size, hashes, about)
