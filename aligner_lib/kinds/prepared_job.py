"""The result of a kind's build.py: a job after reading its data and before building its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from aligner_lib.run_folder.writer import RunWriter

if TYPE_CHECKING:
    from aligner_lib.kinds.evaluate.evaluation import Evaluation
    from aligner_lib.trainers.loop import TrainerProtocol


@dataclass(frozen=True)
class JobPart:
    """A part of a job with a run folder of its own."""

    config: DictConfig
    prepare: Callable[[], PreparedJob]


@dataclass(frozen=True)
class PreparedJob:
    """A job whose models are not built yet. `build` builds them, given the run's writer (None on all ranks except the
    first)."""

    build: Callable[[RunWriter | None], TrainerProtocol | Evaluation] | None
    """None for a job that consists of parts."""
    max_steps: int
    loop: DictConfig | None
    """A config.schema.Loop; None for a job that does not train."""
    hashes: dict[str, str]
    close: Callable[[], None] = lambda: None
    """Ends the processes started by the job, for example environment processes."""
    parts: Mapping[str, JobPart] = field(default_factory=dict)
    """The parts of the job by name, which run one after another."""
