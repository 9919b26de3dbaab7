"""What a server's job serves: a model that actors ask, ready but for its weights."""

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
    """What a server's job serves, ready but for its model: `make` builds this rank's part."""

    make: Callable[[], Worker]
    service: str
    """The name that the server announces itself by: `critic` or `reward_model`."""
    is_trained: bool
    """Whether an actor trains what is served, so that there are checkpoints of it."""
    vocab_size: int
    hashes: dict[str, str]
    about: dict
    """What an actor has to know of the server."""


def serving(make: Callable[[], Worker], service: str, is_trained: bool, start: Path, about: dict) -> Serving:
    """What a server serves that begins with the model folder `start`. about: what the kind adds for the actor."""
    architecture = Architecture.load(start)
    about = about | {
        "model": str(start),
        "tokenizer": Tokenizer(start).hash,
        "positions": architecture.max_position_embeddings,
    }
    return Serving(make, service, is_trained, architecture.vocab_size, {"model": model_hash(start)}, about)
