"""Export a trained model to the format of another library. Importing the package needs neither torch nor Megatron.

A target is a module with one function, listed in TARGETS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from aligner_lib.errors import UserError
from aligner_lib.models.disk import whole_or_absent
from aligner_lib.models.export import hf, nemo, peft
from aligner_lib.models.export.trained import Options, Trained

# By the target's name in `aligner model export --to`. A target writes the model to a new path (a folder or a file) and returns
# notes for the user.
TARGETS: dict[str, Callable[[Trained, Path, Options], list[str]]] = {
    "hf": hf.write,
    "nemo": nemo.write,
    "peft": peft.write,
}


def export(source: str | Path, to: str, out: Path, options: Options | None = None) -> list[str]:
    """Write a model for another library. Afterwards `out` is complete or does not exist. Returns notes for the user.

    source: see `resolve`: a run (its latest checkpoint), a checkpoint, a model folder or a name. Raises UserError for an
    unknown target, ValueError when the target can't represent the model and when `out` exists, DiskFull.
    """
    if to not in TARGETS:
        raise UserError(f"there is no export target {to!r}; the targets are {', '.join(TARGETS)}")
    trained = Trained.find(source)
    with whole_or_absent(Path(out), "--out") as partial:
        return TARGETS[to](trained, partial, replace(options or Options(), place=Path(out).absolute()))
