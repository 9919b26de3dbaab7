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
    vocab_size: int
    hashes: dict[str, str]
    about: dict  # what an actor has to know of it


def serving(make: Callable[[], Worker], start: Path, about: dict) -> Serving:
    architecture = Architecture.load(start)
    about = about | {
        "model": str(start),
        "tokenizer": Tokenizer(start).hash,
        "positions": architecture.max_position_embeddings,
    }
    return Serving(make, architecture.vocab_size, {"model": model_hash(start)}, about)
