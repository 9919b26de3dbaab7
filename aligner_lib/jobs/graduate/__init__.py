"""Graduate: write a run for another library, with weights, data and a config that continues or repeats the run.

A target is a module with a NAME, a TITLE, and KINDS: a function for each kind of job that the library has. Importing this
package needs no torch, because the command line lists the targets.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder

TARGETS = {
    "trl": "aligner_lib.jobs.graduate.trl",
    "nemo-rl": "aligner_lib.jobs.graduate.nemo_rl",
    "verl": "aligner_lib.jobs.graduate.verl",
}
"""Each target's module by the target's name."""


def target_of(name: str) -> ModuleType:
    """Import a target. Raises UserError, which lists all targets, for an unknown name."""
    if name not in TARGETS:
        raise UserError(f"there is no target {name!r}; the targets are {', '.join(TARGETS)}")
    return import_module(TARGETS[name])


def graduate(source: str | Path, to: str, out: Path, reward_model: str | None = None) -> list[str]:
    """Write a run for another library. Afterwards `out` is complete or does not exist. Returns notes for the user.

    source: a run, or a checkpoint of a run. reward_model: the reward model of a run whose reward model was in another job.
    Raises UserError for an unknown target, for a model without a run, for a kind that the target lacks, for settings that the
    target can't compute, and for a reward model without a use; ValueError when `out` exists; the errors of `export`; DiskFull.
    """
    from aligner_lib.jobs.graduate.graduation import Graduation
    from aligner_lib.jobs.graduate.readme import write_readme
    from aligner_lib.models.disk import whole_or_absent
    from aligner_lib.models.export.trained import Trained

    target = target_of(to)
    # before the search for a model, which the run's kind may not have
    _require_trainer(target, source, RunFolder(Path(source)))
    trained = Trained.find(source)
    if trained.run is None:
        raise UserError(
            f"{source} is a model without a run here: give a run folder, or write the weights alone with "
            f"`aligner model export {source} --out DIR`"
        )
    _require_trainer(target, source, trained.run)
    with whole_or_absent(Path(out), "--out") as partial:
        partial.mkdir()
        graduation = Graduation(trained, partial, Path(out).absolute(), reward_model)
        graduation.note_own_functions(target.TITLE)
        graduation.export_models()
        target.KINDS[trained.run.kind](graduation)
        if reward_model and not graduation.has_reward_model:
            raise UserError(
                f"--reward-model {reward_model}: the export of {source} has no reward model: leave the option out"
            )
        write_readme(graduation, target)
    return graduation.notes


def _require_trainer(target: ModuleType, source: str | Path, run: RunFolder) -> None:
    """Raise UserError if the target has no trainer for the run's kind. run: perhaps a folder without a run."""
    if run.info and run.kind not in target.KINDS:
        raise UserError(
            f"{source} is a run of `aligner {run.kind}`, which {target.TITLE} has no trainer for: {target.TITLE} has "
            f"{', '.join(target.KINDS)}; {_others(run.kind)}"
        )


def _others(kind: str) -> str:
    having = [name for name in TARGETS if kind in target_of(name).KINDS]
    if not having:
        return f"no target has a trainer for {kind}: if its checkpoints are models, `aligner model export` writes their weights"
    return f"choose --to {' or '.join(having)}, or write the weights alone with `aligner model export`"
