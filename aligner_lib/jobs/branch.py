"""`aligner branch`: runs the jobs of a branch in order."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aligner_lib.config.compose import compose, load, parse_override, recorded, save, settings_of, written
from aligner_lib.config.functions import place_in
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.validation import without_effect
from aligner_lib.errors import UserError
from aligner_lib.jobs.command_line import command
from aligner_lib.models.resolve import resolve
from aligner_lib.run_folder.branch import begin_branch, remove_unstarted
from aligner_lib.run_folder.reader import RunFolder, flatten, step_of
from cluster.processes import signalled_children
from data.hub import is_hub_name

if TYPE_CHECKING:
    from omegaconf import DictConfig

OF_A_FOLDER = ("exp_manager.explicit_log_dir", "exp_manager.stop_after", "exp_manager.resume_if_exists")
MODEL = re.compile(r".*\.restore_from_path")
DATA = re.compile(r".*\.(data_prefix(\.train|\.validation)?|(train|validation)_ds\.file_path)")


def parents_settings(parent: RunFolder) -> dict[str, object]:
    """Return a run's settings as differences from its profile, except the settings of its folder.

    A file in the run folder, such as a notebook's function, is named by its present place. Raises UserError for a folder without
    a run, and for a run of several jobs.
    """
    info = parent.info
    if not info:
        raise UserError(f"{parent.path} is not a run, because run.json is missing")
    kind, plain = kind_of(info["kind"]), recorded(info)
    others = [part.folder for part in kind.components.values() if part.folder]
    trains_server = kind.trains_server(load(kind.name, plain))
    if trains_server or any((parent.path / folder).is_dir() for folder in others):
        raise UserError(
            f"{parent.path} ran as several jobs, but a branch continues in a single job: run the parent in a single "
            "process"
        )
    settings = settings_of(kind.name, plain, info.get("profile"))
    before = str((info["config"].get("exp_manager") or {}).get("explicit_log_dir")).rstrip("/") + "/"
    return {
        key: str(parent.path.absolute() / value.removeprefix(before))
        if isinstance(value, str) and value.startswith(before)
        else value
        for key, value in settings.items()
        if key not in OF_A_FOLDER
    }


def go_on(parent: RunFolder, at: int, child: Path | None, overrides: list[str]) -> None:
    """Run a branch in this process and its children: repeat the parent's steps up to the fork, then run the remaining steps.

    Raises UserError for rejected settings and missing inputs, before anything is written, and SystemExit if a job fails.
    """
    # a single task of Slurm's: the branch's jobs start the ranks of their settings themselves
    if os.environ.get("WORLD_SIZE") == "1":
        os.environ.pop("RANK", None)
        os.environ.pop("WORLD_SIZE")
    child = child or parent.path.with_name(f"{parent.name}-at-{at}")
    shared = parents_settings(parent) | _present_inputs(parent, overrides)
    kind, profile = parent.kind, parent.info.get("profile")
    _check_inputs(parent, _check(parent, shared, overrides, child), overrides)
    up_to_fork = command(kind, child, shared | {"exp_manager.stop_after": at}, profile) if at else []
    rest = [*command(kind, child, shared, profile), *overrides]
    steps = begin_branch(parent, child, at)
    if steps < at:
        print(
            f"steps {steps + 1} to {at} of {parent.name} are computed again, because {parent.name} has no checkpoint "
            f"of step {at}",
            flush=True,
        )
        if code := run_to_end(up_to_fork):
            remove_unstarted(RunFolder(child))
            sys.exit(code)
        if step_of(RunFolder(child).latest_checkpoint()) < at:
            return  # a user stopped the job, and the new settings must not apply before the fork
    sys.stdout.flush()
    os.execv(rest[0], rest)  # exec, so that the scheduler's signals reach the job itself


def run_to_end(command: list[str]) -> int:
    """Run a job to its end, and return its exit code. A scheduler's signals to this process, and Ctrl-C, reach the job."""
    with signalled_children() as start:
        return start(command).wait()


def branch_command(
    parent: RunFolder, at: int, child: Path, settings: dict[str, object], python: str = ""
) -> list[str]:
    """The command of a branch as a job. python: the job's interpreter; "": this process's.

    Raises ConfigError for rejected settings.
    """
    overrides = [f"{key}={written(value)}" for key, value in settings.items()]
    _check(parent, parents_settings(parent), overrides, child)
    words = [
        python or sys.executable,
        "-m",
        "aligner_lib",
        "branch",
        str(parent.path),
        "--at",
        str(at),
        "--run",
        str(child),
    ]
    return [*words, *overrides]


def _present_inputs(parent: RunFolder, overrides: list[str]) -> dict[str, object]:
    """The overrides for the steps before the fork, too: the places of models and data, and of functions and environments whose
    files were moved since the parent read them.

    The job compares the content with the parent's.
    """
    before, hashes = flatten(parent.info["config"]), parent.info.get("hashes") or {}
    inputs = {}
    for key, value in map(parse_override, overrides):
        names = flatten({key: value})
        is_code = all(name in hashes for name in names)
        if (
            MODEL.fullmatch(key)
            or DATA.fullmatch(key)
            or (is_code and not any(place_in(before.get(name, ""))[0].exists() for name in names))
        ):
            inputs[key] = value
    return inputs


def _check_inputs(parent: RunFolder, config: DictConfig, overrides: list[str]) -> None:
    """Raise UserError for a missing model or file that the job reads. config: the branch's settings."""
    hashes, idle = parent.info.get("hashes") or {}, without_effect(kind_of(parent.kind), config)
    given = {name for key, value in map(parse_override, overrides) for name in flatten({key: value})}
    for key, value in flatten(save(config)).items():
        is_model = MODEL.fullmatch(key) is not None
        if key not in idle and (is_model or DATA.fullmatch(key) or key in hashes):
            for place in value if isinstance(value, list) else [value]:
                if place and not _exists(str(place), is_model):
                    if key in given:
                        raise UserError(f"{key}={place} does not exist")
                    raise UserError(
                        f"{key}={place} of {parent.name} does not exist: if the file was moved, give the present place as {key}=…"
                    )


def _exists(place: str, is_model: bool) -> bool:
    path = place_in(place)[0]
    if path.exists():
        return True
    if is_model:
        with suppress(ValueError):
            return bool(resolve(place))
    # token files are named by their prefix
    return not is_model and (path.with_name(f"{path.name}.bin").exists() or is_hub_name(place))


def _check(parent: RunFolder, shared: Mapping[str, object], overrides: list[str], child: Path) -> DictConfig:
    """Return the branch's settings. Raises ConfigError for rejected settings, and UserError for a branch that would not continue
    from its parent."""
    texts = [*(f"{key}={written(value)}" for key, value in shared.items()), *overrides]
    config = compose(parent.kind, texts, parent.info.get("profile"))
    if (config.get("exp_manager") or {}).get("resume_if_exists") is False:
        raise UserError(
            f"exp_manager.resume_if_exists=False would train {child} from step 0, without the steps of {parent.name}: to begin "
            "the branch anew, remove the folder, or choose another folder"
        )
    return config
