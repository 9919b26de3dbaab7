"""A branch: a run that shares another run's first steps, and goes on from there with settings of its own.

The child's folder gets its parent's checkpoint and records up to the fork. A job of the same kind then goes on in it, with the same
prompts and the same random numbers as the parent, so the two runs differ by the changed settings alone. Imports no torch.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.run_folder.writer import RECORDS
from cluster.record import write_json


def begin_branch(parent: RunFolder, child: Path, at: int) -> int:
    """Fill a new run folder with what a branch shares with its parent. Returns the step that it goes on from.

    at: the last step that both share, 0 to the parent's last. The result is `at` where the parent kept a checkpoint of that
    step, else the step of the last checkpoint before, or 0: the steps up to `at` are then computed again.

    A branch that was begun before and ended early goes on from its own newest checkpoint.

    Raises UserError for a parent that did not get so far, and for a folder that is another run's.
    """
    info = _branched(parent, at)
    origin = {"run": str(parent.path.absolute()), "name": parent.name, "step": at}
    if begun := RunFolder(child).info:
        if begun.get("parent") != origin:
            raise UserError(
                f"{child} is a run already, and not this branch of {parent.name}: choose another folder for the branch"
            )
        return min(step_of(RunFolder(child).latest_checkpoint()), at)
    kept = [checkpoint for checkpoint in parent.checkpoints() if step_of(checkpoint) <= at]
    child.mkdir(parents=True, exist_ok=True)
    if kept:
        target = child / "checkpoints" / kept[-1].name
        shutil.copytree(kept[-1], target, dirs_exist_ok=True)
        for name in RECORDS:
            if (parent.path / name).exists():
                shutil.copyfile(parent.path / name, child / name)
    shared = {key: info[key] for key in ("kind", "config", "hashes", "precision") if key in info}
    content = shared | {
        "name": child.name,
        "status": "stopped",
        "message": f"a branch of {parent.name} that was not started yet",
        "created": time.time(),
        "parent": origin,
    }
    write_json(child / "run.json", content)  # last: without it, the copies above are made again
    return step_of(kept[-1]) if kept else 0


def _branched(parent: RunFolder, at: int) -> dict:
    """The parent's run.json. Raises UserError where there is nothing to branch from."""
    info = parent.info
    if not info:
        raise UserError(f"{parent.path} is not a run: there is no run.json")
    last = info["heartbeat"]["step"]
    if not 0 <= at <= last:
        raise UserError(f"at={at}: {parent.path} has the steps 0 to {last}")
    return info
