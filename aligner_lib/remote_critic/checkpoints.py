"""The critic's own run folder: its checkpoints by the number of train steps, and its metrics."""

from __future__ import annotations

import json
from pathlib import Path

from aligner_lib.remote_critic.errors import NoCheckpoint
from aligner_lib.run_folder.reader import step_name, step_of
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import check_checkpoint


class CriticCheckpoints:
    """Checkpoints are named by the train steps in them, as the actor counts them, too."""

    def __init__(self, run: RunWriter, keep: int):
        """keep: how many checkpoints stay at least."""
        self.run, self.keep = run, keep

    def numbers(self) -> list[int]:
        return [step_of(path) for path in self.run.folder.checkpoints()]

    def latest(self) -> int:
        """0: none."""
        return max(self.numbers(), default=0)

    def find(self, number: int) -> Path | None:
        """The checkpoint after so many train steps; None for 0: the weights that the critic began with."""
        if number == 0:
            return None
        if number not in self.numbers():
            there = ", ".join(map(str, self.numbers())) or "none"
            raise NoCheckpoint(f"it has no checkpoint after {number} train steps (there are: {there})")
        return self.run.path / "checkpoints" / step_name(number)

    def owner(self) -> str | None:
        """The actor's run that the newest checkpoint belongs to."""
        newest = self.run.folder.latest_checkpoint()
        return json.loads((newest / "critic.json").read_text())["actor_run"] if newest else None

    def tmp_dir(self, number: int) -> Path:
        return self.run.checkpoint_tmp_dir(number)

    def accept(
        self, tmp_dir: Path, number: int, previous: int, actor_run: str | None, way_back: int = 0
    ) -> None:
        """Give a complete checkpoint its name. Those that the actor may still come back to stay.

        previous: of the actor's last checkpoint. way_back: of the one to which `aligner undo` goes back; 0: there is none.
        """
        (tmp_dir / "critic.json").write_text(json.dumps({"updates": number, "actor_run": actor_run}))
        needed = sum(there >= previous for there in {*self.numbers(), number})
        self.run.accept_checkpoint(tmp_dir, number, max(self.keep, needed), check_checkpoint, {way_back})

    def forget_after(self, number: int) -> None:
        """Set aside what was saved after so many steps, and cut off what was logged: the actor takes these steps anew."""
        self.run.rewind(number)

    def log(self, number: int, metrics: dict[str, float], lr: float, seconds: float) -> None:
        self.run.log(
            number,
            {
                "train/loss": metrics["loss"],
                "train/grad_norm": metrics["grad_norm"],
                "train/lr": lr,
                "train/step_time": seconds,
            },
        )
