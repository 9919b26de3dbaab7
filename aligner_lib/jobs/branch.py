"""`aligner branch`: runs the jobs of a branch in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aligner_lib.config.compose import compose, settings_of, written
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.jobs.command_line import command
from aligner_lib.run_folder.branch import begin_branch
from aligner_lib.run_folder.reader import RunFolder, step_of

OF_A_FOLDER = ("exp_manager.explicit_log_dir", "exp_manager.stop_after", "exp_manager.resume_if_exists")


def parents_settings(parent: RunFolder) -> dict[str, object]:
    """Return a run's settings as differences from its profile, except the settings of its folder.

    Raises UserError for a folder without a run, and for a run of several jobs.
    """
    info = parent.info
    if not info:
        raise UserError(f"{parent.path} is not a run, because run.json is missing")
    others = [part.folder for part in kind_of(info["kind"]).components.values() if part.folder]
    if any((parent.path / folder).is_dir() for folder in others):
        raise UserError(
            f"{parent.path} ran as several jobs, but a branch continues in a single job: run the parent in a single "
            "process"
        )
    settings = settings_of(info["kind"], info["config"], info.get("profile"))
    return {key: value for key, value in settings.items() if key not in OF_A_FOLDER}


def go_on(parent: RunFolder, at: int, child: Path | None, overrides: list[str]) -> None:
    """Run a branch in this process and its children: repeat the parent's steps up to the fork, then run the remaining steps.

    Raises UserError for rejected settings, before anything is written, and SystemExit if a job fails.
    """
    child = child or parent.path.with_name(f"{parent.name}-at-{at}")
    shared = parents_settings(parent)
    kind, profile = parent.kind, parent.info.get("profile")
    compose(kind, [*(f"{key}={written(value)}" for key, value in shared.items()), *overrides], profile)
    steps = begin_branch(parent, child, at)
    if steps < at:
        print(
            f"steps {steps + 1} to {at} of {parent.name} are computed again, because {parent.name} has no checkpoint "
            f"of step {at}",
            flush=True,
        )
        again = command(kind, child, shared | {"exp_manager.stop_after": at}, profile)
        if code := subprocess.run(again).returncode:
            sys.exit(code)
        if step_of(RunFolder(child).latest_checkpoint()) < at:
            return  # a user stopped the job, and the new settings must not apply before the fork
    sys.stdout.flush()
    rest = [*command(kind, child, shared, profile), *overrides]
    os.execv(rest[0], rest)  # exec, so that the scheduler's signals reach the job itself


def branch_command(parent: RunFolder, at: int, child: Path, settings: dict[str, object]) -> list[str]:
    """The command of a branch as a job. Raises ConfigError for rejected settings."""
    overrides = [f"{key}={written(value)}" for key, value in settings.items()]
    shared = [f"{key}={written(value)}" for key, value in parents_settings(parent).items()]
    compose(parent.kind, [*shared, *overrides], parent.info.get("profile"))
    words = [
        sys.executable,
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
