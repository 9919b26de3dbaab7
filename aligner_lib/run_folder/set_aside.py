"""Moves what no longer belongs to a run into a folder `old-N` of its run folder, where it keeps its place, and undoes a change.

A run saves a checkpoint before it takes a change of its learning rate or KL coefficient over. Its trainer.json holds under
`changes` the values from there on, and under `before` those that held until then.
"""

from __future__ import annotations

import json
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder, step_of


def set_aside(run: Path, paths: list[Path]) -> Path | None:
    """Move files and folders of a run folder into a new `old-N`; returns it, or None where there is nothing to move."""
    if not paths:
        return None
    taken = [int(path.name.removeprefix("old-")) for path in run.glob("old-[0-9]*")]
    old = run / f"old-{max(taken, default=0) + 1}"
    for path in paths:
        place = old / path.relative_to(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return old


def precedes_change(checkpoint: Path) -> bool:
    """Whether a checkpoint was saved just before the run took a change over."""
    return "before" in _state(checkpoint)


def undo_change(run: RunFolder) -> tuple[Path, dict[str, float]]:
    """Take back the last change of a run that is over: its next start goes on from the checkpoint before the change.

    Later checkpoints are set aside, and the next start does their steps again. Returns the checkpoint, and the changes that
    hold from there on (none: all values are the settings'). Raises UserError for a run that goes on, or was never changed.
    """
    if not run.is_over:
        raise UserError(f"{run.path} is {run.status}: stop it first (`aligner stop {run.path}`)")
    checkpoint = next(filter(precedes_change, reversed(run.checkpoints())), None)
    if checkpoint is None:
        raise UserError(
            f"{run.path} has no checkpoint from before a change of its learning rate or KL coefficient"
        )
    set_aside(run.path, [path for path in run.checkpoints() if step_of(path) > step_of(checkpoint)])
    state = _state(checkpoint)
    state["changes"] = state.pop("before")
    tmp = checkpoint / ".trainer.json"
    tmp.write_text(json.dumps(state))
    tmp.rename(checkpoint / "trainer.json")
    return checkpoint, state["changes"]


def _state(checkpoint: Path) -> dict:
    try:
        return json.loads((checkpoint / "trainer.json").read_text())
    except FileNotFoundError:
        return {}
