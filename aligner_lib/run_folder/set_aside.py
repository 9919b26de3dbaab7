"""Moves outdated files of a run into a folder `old-N` in the run folder, at the same relative paths. Also undoes a change.

A run saves a checkpoint before applying a change of its learning rate or KL coefficient. The checkpoint's trainer.json holds
the values after the change under `changes`, and the values before the change under `before`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder, step_of
from cluster.record import write_json


def set_aside(run: Path, paths: list[Path]) -> Path | None:
    """Move files and folders of a run folder into a new `old-N`. Return the new folder, or None if there is nothing to move."""
    if not paths:
        return None
    taken = [int(old[1]) for path in run.glob("old-*") if (old := re.fullmatch(r"old-(\d+)", path.name))]
    old = run / f"old-{max(taken, default=0) + 1}"
    for path in paths:
        place = old / path.relative_to(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return old


def precedes_change(checkpoint: Path) -> bool:
    """Whether a checkpoint was saved just before the run applied a change."""
    return "before" in _state(checkpoint)


@dataclass(frozen=True)
class Change:
    """The newest change of a run's settings that can be undone."""

    checkpoint: Path
    """Saved just before the change."""
    step: int
    """The last step before the change."""
    values: dict[str, float]
    """The changed settings and their new values."""


def last_change(run: RunFolder) -> Change | None:
    """The change that `undo_change` would undo; None without a change, as in a recording."""
    checkpoints = run.checkpoints() if hasattr(run, "checkpoints") else []
    for checkpoint in reversed(checkpoints):
        state = _state(checkpoint)
        if "before" in state:
            changed = state["changes"].items() - state["before"].items()
            return Change(checkpoint, step_of(checkpoint), dict(sorted(changed)))
    return None


def way_back(run: RunFolder, alarm_steps: Iterable[int] = ()) -> str:
    """Explain how to undo the last change of a failed run, or of a run with an alarm since the change. "" for other runs.

    alarm_steps: the steps at which the run's alarms began.
    """
    alarm_steps, harmed = list(alarm_steps), run.status in ("failed", "lost")
    if not (harmed or alarm_steps):
        # return without reading the checkpoints, because monitors call this function twice a second
        return ""
    change = last_change(run)
    if change is None or not (harmed or any(step > change.step for step in alarm_steps)):
        return ""
    values = ", ".join(f"{name} = {value:g}" for name, value in change.values.items()) or "the same values"
    stop = "" if run.is_over else "stop the run, and then "
    return (
        f"After step {change.step} the settings were changed to {values}. If that change did the harm, {stop}take it back "
        f"with `aligner undo {run.path}` (in Python: `aligner_lib.run_folder.set_aside.undo_change(run)`): the run's next "
        f"start then goes on from {change.checkpoint.name}."
    )


def undo_change(run: RunFolder) -> tuple[Path, dict[str, float]]:
    """Undo the last change of a run that is over. The run's next start continues from the checkpoint before the change.

    Later checkpoints are moved to `old-N`, and the next start repeats their steps. Returns the checkpoint, and the changes that
    apply from the checkpoint on (empty: all values come from the settings). Raises UserError for a run that is not over, or was
    never changed.
    """
    if not run.is_over:
        raise UserError(f"{run.path} is {run.status}: stop the run first (`aligner stop {run.path}`)")
    change = last_change(run)
    if change is None:
        raise UserError(
            f"{run.path} has no checkpoint from before a change of its learning rate or KL coefficient"
        )
    checkpoint = change.checkpoint
    set_aside(run.path, [path for path in run.checkpoints() if step_of(path) > change.step])
    state = _state(checkpoint)
    state["changes"] = state.pop("before")
    tmp = checkpoint / ".trainer.json"
    tmp.write_text(json.dumps(state))
    tmp.rename(checkpoint / "trainer.json")
    undone_at = [step for step in run.info.get("changed_at", []) if step < change.step]
    message = f"a change was undone: goes on from {checkpoint.name}"
    write_json(run.path / "run.json", run.info | {"message": message, "changed_at": undone_at})
    return checkpoint, state["changes"]


def undone(run: RunFolder, checkpoint: Path, changes: dict[str, float]) -> str:
    """Describe the effect of `undo_change` in a sentence, from its result."""
    values = ", ".join(f"{name} = {value:g}" for name, value in changes.items()) or "its settings' values"
    return f"{run.path} goes on from {checkpoint.name} with {values} when it is started again"


def _state(checkpoint: Path) -> dict:
    try:
        return json.loads((checkpoint / "trainer.json").read_text())
    except FileNotFoundError:
        return {}
