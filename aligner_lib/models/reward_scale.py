"""How rewards leave the reward model: (r − mean) / std, with the figures kept beside its weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class RewardScale:
    """mean, std: of the raw rewards on validation pairs. The default changes nothing."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, rewards):
        return (rewards - self.mean) / self.std

    def save(self, folder: Path) -> None:
        (Path(folder) / "reward.json").write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> RewardScale:
        path = Path(folder) / "reward.json"
        return RewardScale(**json.loads(path.read_text())) if path.exists() else RewardScale()
