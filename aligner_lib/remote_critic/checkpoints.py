"""The critic's own run folder: checkpoints, named by their number of train steps, and metrics."""

from __future__ import annotations

import json
from pathlib import Path

from aligner_lib.remote_critic.errors import NoCheckpoint
from aligner_lib.remote_critic.session import ActorRun
from aligner_lib.run_folder.reader import step_name, step_of
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.loop import check_checkpoint


class CriticCheckpoints:
    """The critic's checkpoints. A checkpoint's name has its number of train steps, counted as by the actor."""

    def __init__(self, run: RunWriter, keep: int):
        """keep: how many of the newest checkpoints are always kept."""
        self.run, self.keep = run, keep

    def numbers(self) -> list[int]:
        return [step_of(path) for path in self.run.folder.checkpoints()]

    def latest(self) -> int:
        """The number of the newest checkpoint; 0 without checkpoints."""
        return max(self.numbers(), default=0)

    def find(self, number: int) -> Path | None:
        """The checkpoint after `number` train steps; None for 0, the initial weights. Raises NoCheckpoint for a missing
        checkpoint."""
        if number == 0:
            return None
        if number not in self.numbers():
            existing = ", ".join(map(str, self.numbers())) or "none"
            raise NoCheckpoint(
                f"the server has no checkpoint after {number} train steps (its checkpoints: {existing})"
            )
        return self.run.path / "checkpoints" / step_name(number)

    def owner(self) -> ActorRun | None:
        """The actor's run to which the newest checkpoint belongs; None without checkpoints."""
        newest = self.run.folder.latest_checkpoint()
        if newest is None:
            return None
        record = json.loads((newest / "critic.json").read_text())
        return ActorRun(record["actor_run"], record.get("actor_created"))

    def tmp_dir(self, number: int) -> Path:
        return self.run.checkpoint_tmp_dir(number)

    def accept(self, tmp_dir: Path, number: int, previous: int, actor: ActorRun, way_back: int = 0) -> None:
        """Give a complete checkpoint its final name. Checkpoints to which the actor may still go back are kept.

        previous: the number of the critic's checkpoint that belongs to the actor's last checkpoint. way_back: the number of the
        checkpoint for `aligner undo`; 0: none.
        """
        record = {"updates": number, "actor_run": actor.path, "actor_created": actor.created}
        (tmp_dir / "critic.json").write_text(json.dumps(record))
        needed = sum(existing >= previous for existing in {*self.numbers(), number})
        self.run.accept_checkpoint(tmp_dir, number, max(self.keep, needed), check_checkpoint, {way_back})

    def forget_after(self, number: int) -> None:
        """Set aside the checkpoints after `number`, and cut off the later metrics, because the actor repeats the steps after
        `number`."""
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
