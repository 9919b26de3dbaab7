"""Reward normalisation, (r − mean) / std, with both numbers stored beside the reward model's weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from aligner_lib.datasets.json_file import key_errors_in, read_object


@dataclass(frozen=True)
class RewardScale:
    """mean, std: mean and standard deviation of the raw rewards on the validation pairs. The defaults change no reward."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, rewards):
        return (rewards - self.mean) / self.std

    def save(self, folder: Path) -> None:
        """Write reward.json into a checkpoint folder."""
        (Path(folder) / "reward.json").write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> RewardScale:
        """Read reward.json from a checkpoint folder; the defaults when the file is missing."""
        path = Path(folder) / "reward.json"
        with key_errors_in(path):
            return RewardScale(**read_object(path)) if path.exists() else RewardScale()
