"""What a kind's build.py gives: a job, its data read, that is ready but for its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from aligner_lib.run_folder.writer import RunWriter

if TYPE_CHECKING:
    from aligner_lib.kinds.evaluate.evaluation import Evaluation
    from aligner_lib.trainers.loop import Trainer


@dataclass(frozen=True)
class PreparedJob:
    """A job, ready but for its models: `build` makes them, given the run's writer (None on all ranks but the first)."""

    build: Callable[[RunWriter | None], Trainer | Evaluation]
    max_steps: int
    loop: DictConfig  # a config.schema.Loop
    hashes: dict[str, str]
    close: Callable[[], None] = lambda: (
        None
    )  # ends what it has started beside itself: environments' processes
