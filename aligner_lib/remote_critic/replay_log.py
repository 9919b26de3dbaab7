"""Train steps that no checkpoint of the critic's holds yet, and the actor's note of where its critic stands.

In the actor's checkpoint: critic/remote.json, and critic/steps.npz where the critic was away when it was written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aligner_lib.remote_critic import serialization
from aligner_lib.rollouts.records import Experience


@dataclass(frozen=True)
class Step:
    """What a train step of the critic was made from: enough to take it again, to the bit."""

    number: int  # from 1
    experience: Experience  # of the whole global batch
    lr: float


def is_there(folder: Path) -> bool:
    return (folder / "remote.json").exists()


def write(folder: Path, updates: int, saved: int, steps: list[Step]) -> None:
    """updates: train steps in all; saved: those in the critic's checkpoint of that number; steps: the ones between."""
    assert [step.number for step in steps] == list(range(saved + 1, updates + 1)), "a train step is missing"
    folder.mkdir(parents=True, exist_ok=True)
    if steps:
        arrays = {
            f"{step.number}/{name}": array
            for step in steps
            for name, array in serialization.pack_experience(step.experience).items()
        }
        np.savez(folder / "steps.npz", **arrays)
    lrs = {step.number: step.lr.hex() for step in steps}
    (folder / "remote.json").write_text(json.dumps({"updates": updates, "saved": saved, "lrs": lrs}))


def read(folder: Path) -> tuple[int, int, list[Step]]:
    note = json.loads((folder / "remote.json").read_text())
    steps = []
    if note["lrs"]:
        with np.load(folder / "steps.npz") as arrays:
            for number, lr in note["lrs"].items():
                own = {
                    name.partition("/")[2]: arrays[name] for name in arrays if name.startswith(f"{number}/")
                }
                experience = serialization.unpack_experience(
                    own, vocab_size=1 << 62
                )  # it was checked when it was made
                steps.append(Step(int(number), experience, float.fromhex(lr)))
    return note["updates"], note["saved"], steps
