"""A model to export, and the run that trained it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.export.arrays import AdaptedArrays, open_arrays
from aligner_lib.models.fetch import is_cached
from aligner_lib.models.resolve import resolve
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.stream import StoredArrays
from aligner_lib.run_folder.reader import RunFolder, step_of

CRITIC = "critic"  # a PPO checkpoint's folder with the critic's weights


@dataclass(frozen=True)
class Options:
    """What a user may choose of an export."""

    dtype: str | None = None  # of the weights: float32, float16 or bfloat16; None keeps theirs
    shard_bytes: int = 5_000_000_000  # a file of weights is at most so large
    place: Path | None = None  # where the export will lie, for files that name it; `export` fills it in
    progress: Callable[[int, int], None] | None = None  # called with (weights done, weights in all)


@dataclass(frozen=True)
class Trained:
    """A model folder, and the run whose checkpoint it is."""

    folder: Path
    run: RunFolder | None = None
    step: int = 0  # optimiser steps of the run

    @staticmethod
    def find(source: str | Path) -> Trained:
        """The model that a run, a checkpoint, a model folder or a name stands for (`resolve`)."""
        folder = resolve(source)
        checkpoint = folder.parent if folder.name == CRITIC else folder
        run = RunFolder(checkpoint.resolve().parent.parent)
        if checkpoint.resolve().parent.name == "checkpoints" and run.info:
            return Trained(folder, run, step_of(checkpoint.resolve()))
        return Trained(folder)

    @cached_property
    def architecture(self) -> Architecture:
        """The model's architecture."""
        return Architecture.load(self.folder)

    @cached_property
    def weights(self) -> StoredArrays | AdaptedArrays:
        """The model's weights under Megatron's names, adapters merged."""
        return open_arrays(self.folder)

    @property
    def scale(self) -> RewardScale:
        """How a reward model's rewards leave it."""
        return RewardScale.load(self.folder)

    @property
    def config(self) -> dict:
        """The settings of the run; empty without one."""
        return self.run.info["config"] if self.run else {}

    @property
    def start(self) -> str | None:
        """What the model began as: the path or name in the run's settings."""
        of_model = self.config.get("critic", {}) if self.folder.name == CRITIC else self.config
        places = (of_model.get("pretrained_checkpoint"), of_model.get("model"))
        paths = ((place or {}).get("restore_from_path") for place in places)
        return next((path for path in paths if path), None)

    def origin(self) -> Trained | str | None:
        """What the model began as, if its folder is still there; else its name; None where no run made the model."""
        if self.start is None:
            return None
        if Path(self.start).expanduser().is_dir() or is_cached(self.start):
            return Trained.find(self.start)
        return Path(self.start).name
