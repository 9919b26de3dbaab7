"""A branch: a run that shares another run's first steps and then continues with its own settings.

The child's folder gets its parent's checkpoint and records up to the fork. A job of the same kind then continues in the child's
folder, with the same prompts and random numbers as the parent. The two runs differ only in the changed settings. This module
does not import torch.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.run_folder.set_aside import set_aside
from aligner_lib.run_folder.writer import RECORDS
from cluster.record import write_json


def begin_branch(parent: RunFolder, child: Path, at: int) -> int:
    """Copy the shared records and checkpoint into a branch's new run folder. Return the step from which the branch continues.

    at: the last shared step, from 0 to the parent's last step. The result is `at` if the parent kept a checkpoint of step `at`.
    Otherwise the result is the step of the last checkpoint before, or 0, and the steps up to `at` are computed again. A branch
    that was started earlier and is incomplete continues from its own newest checkpoint. If the parent was begun anew since, the
    branch begins anew, too, and the old files are set aside. Raises UserError if the parent did not reach step `at`, for the
    folder of another run, and if the steps that would be computed again had another learning rate or KL coefficient of a user's,
    or other settings than the parent's last ones.
    """
    info = _branched(parent, at)
    if begun := RunFolder(child).info:
        if not is_branch(RunFolder(child), parent, at):
            raise UserError(
                f"{child} is a run already, but not the branch of {parent.name}: choose another folder for the branch"
            )
        if begun["parent"].get("created", info.get("created")) == info.get("created"):
            return min(step_of(RunFolder(child).latest_checkpoint()), at)
    kept = [checkpoint for checkpoint in parent.checkpoints() if step_of(checkpoint) <= at]
    begin = step_of(kept[-1]) if kept else 0
    if changed := [step for step in info.get("changed_at", ()) if begin < step < at]:
        raise UserError(
            f"at={at}: a user changed {parent.name} after step {changed[0]}, whose checkpoint no longer exists, so the steps "
            f"{begin + 1} to {at} can't be computed again: choose a step up to {changed[0]}, or the step of a later checkpoint"
        )
    others = [step for step in info.get("other_settings_at", ()) if step > begin]
    if others and begin < at:
        steps = ", ".join(str(step_of(checkpoint)) for checkpoint in parent.checkpoints())
        raise UserError(
            f"at={at}: {parent.name} continued with other settings after step {others[0]}, and has no checkpoint of step {at}, so "
            f"the steps {begin + 1} to {at} can't be computed again: choose the step of a checkpoint ({steps})"
        )
    if begun:
        set_aside_branch(RunFolder(child))
    child.mkdir(parents=True, exist_ok=True)
    if kept:
        target = child / "checkpoints" / kept[-1].name
        shutil.copytree(kept[-1], target, dirs_exist_ok=True)
        for name in RECORDS:
            if (parent.path / name).exists():
                shutil.copyfile(parent.path / name, child / name)
    shared = {key: info[key] for key in ("kind", "config", "hashes", "servers", "precision") if key in info}
    content = shared | {
        "name": child.name,
        "status": "stopped",
        "message": f"a branch of {parent.name} that was not started yet",
        "created": time.time(),
        "parent": _origin(parent, at) | {"created": info.get("created")},
        "changed_at": [step for step in info.get("changed_at", ()) if step <= begin],
        "other_settings_at": [step for step in info.get("other_settings_at", ()) if step <= begin],
    }
    write_json(child / "run.json", content)  # last, so that an interrupted copy starts again
    return begin


def is_branch(child: RunFolder, parent: RunFolder, at: int) -> bool:
    """Whether a run is a branch of another run's step, perhaps of an earlier attempt of the other run."""
    parents = dict(child.info.get("parent") or {"run": ""})
    parents.pop("created", None)
    # the same folder has several names
    return parents | {"run": os.path.realpath(parents["run"])} == _origin(parent, at)


def remove_unstarted(child: RunFolder) -> None:
    """Remove the files of `begin_branch` if no job of the branch has started, for example because its inputs were refused."""
    if child.info.get("heartbeat"):
        return
    for name in ("checkpoints", "control"):
        shutil.rmtree(child.path / name, ignore_errors=True)
    for name in (*RECORDS, "run.json"):
        (child.path / name).unlink(missing_ok=True)
    with suppress(OSError):  # the folder of a job or of functions
        child.path.rmdir()


def set_aside_branch(child: RunFolder) -> None:
    """Move a branch's records and checkpoints into a separate run folder `old-N`, so that the branch can begin anew.

    Raises UserError if the branch is still running.
    """
    if child.status == "running":
        raise UserError(f"{child.path} is still running: stop the branch first (`aligner stop {child.path}`)")
    written = [path for name in RECORDS if (path := child.path / name).exists()]
    # run.json last, so that an interrupted move is repeated
    old = set_aside(child.path, [*written, *child.checkpoints(), child.path / "run.json"])
    print(f"{child.name} begins anew, and the old files are in {old}", flush=True)


def _origin(parent: RunFolder, at: int) -> dict:
    return {"run": str(parent.path.resolve()), "name": parent.name, "step": at}


def _branched(parent: RunFolder, at: int) -> dict:
    """Return the parent's run.json. Raises UserError if the parent is not a run or lacks step `at`."""
    info = parent.info
    if not info:
        raise UserError(f"{parent.path} is not a run, because run.json is missing")
    last = (info.get("heartbeat") or {}).get("step", 0)  # a branch that never started has no heartbeat
    if not 0 <= at <= last:
        raise UserError(f"at={at}: {parent.path} has the steps 0 to {last}")
    return info
