"""A model for export, and the run that trained the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.export.arrays import AdaptedArrays, open_arrays
from aligner_lib.models.fetch import MODELS, cache_root, is_cached
from aligner_lib.models.hash import model_hash
from aligner_lib.models.resolve import resolve
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.stream import StoredArrays
from aligner_lib.run_folder.reader import RunFolder, step_of

CRITIC = "critic"  # a PPO checkpoint's folder with the critic's weights


@dataclass(frozen=True)
class Options:
    """The user's choices for an export."""

    dtype: str | None = None
    """The dtype of the exported weights: float32, float16 or bfloat16; None: the stored dtypes."""
    shard_bytes: int = 5_000_000_000
    """The largest size of a file of weights, in bytes."""
    place: Path | None = None
    """The final path of the export, for files that mention the path; set by `export`."""
    progress: Callable[[int, int], None] | None = None
    """Called with (weights done, weights in all)."""


@dataclass(frozen=True)
class Trained:
    """A model folder, and its run if the folder is a run's checkpoint."""

    folder: Path
    run: RunFolder | None = None
    step: int = 0
    """The run's optimizer steps before the checkpoint."""

    @staticmethod
    def find(source: str | Path) -> Trained:
        """The model of a run, a checkpoint, a model folder or a name (see `resolve`)."""
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
        """The scale of a reward model's rewards."""
        return RewardScale.load(self.folder)

    @property
    def config(self) -> dict:
        """The settings of the run; empty for a model without a run."""
        return self.run.info["config"] if self.run else {}

    @property
    def start(self) -> str | None:
        """The path or name of the starting model in the run's settings."""
        of_model = self.config.get("critic", {}) if self.folder.name == CRITIC else self.config
        places = (of_model.get("pretrained_checkpoint"), of_model.get("model"))
        paths = ((place or {}).get("restore_from_path") for place in places)
        return next((path for path in paths if path), None)

    def origin(self) -> Trained | str | None:
        """The starting model; only its name if the model is gone or has changed; None for a model without a starting model."""
        return self._found(self.start, "reward_model" if self.folder.name == CRITIC else "model")

    def restored(self) -> Trained | str | None:
        """The checkpoint whose adapters the run restored; only its name if the checkpoint is gone or has changed, and for a
        folder of PEFT; None for a run without restored adapters."""
        peft = self.config.get("model", {}).get("peft") or {}
        is_lora = peft.get("peft_scheme") == "lora"
        return self._found(peft.get("restore_from_path") if is_lora else None, "adapters")

    def _found(self, source: str | None, name: str) -> Trained | str | None:
        """The model in the folder `source`, or only the folder's name. name: the model's name among the hashes in run.json."""
        if source is None:
            return None
        try:
            folder = _folder_with_hash(source, self.run.info.get("hashes", {}).get(name))
            return Path(source).name if folder is None else Trained.find(folder)
        except (UserError, ValueError, OSError):
            return Path(source).name


def _folder_with_hash(source: str, expected: str | None) -> Path | None:
    """The folder of a run's starting model. A starting run that went on has an earlier checkpoint with the hash."""
    # `resolve` would import an archive, or download a model
    if source.endswith(".nemo"):
        candidates = [*(cache_root() / "nemo").glob(f"{Path(source).stem}-*")]
    elif source in MODELS and not is_cached(source):
        candidates = []
    else:
        folder = resolve(source)
        of_run = RunFolder(folder.parent.parent).checkpoints() if folder.parent.name == "checkpoints" else []
        candidates = [folder, *reversed(of_run)]
    return next((each for each in candidates if expected in (None, model_hash(each))), None)
