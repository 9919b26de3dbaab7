"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aligner_lib.config.kinds import kinds

RUNS = Path("runs")  # where a run without a folder of its own is written, and where its name is looked up
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _profiles_that_begin(incomplete: str) -> list[str]:
    from aligner_lib.config.compose import profiles

    return [name for name in profiles() if name.startswith(incomplete)]


def runs_that_begin(incomplete: str) -> list[str]:
    from aligner_lib.run_folder.reader import find_runs

    names = {str(run.path.relative_to(RUNS)) for run in find_runs(RUNS)} | {
        str(run.path) for run in find_runs(RUNS)
    }
    return sorted(name for name in names if name.startswith(incomplete))


def _settings_that_begin(ctx: typer.Context, incomplete: str) -> list[str]:
    """The settings of a job's command that a shell offers for completion."""
    from aligner_lib.cli.settings_help import completions

    kind = next((kind for kind in kinds().values() if kind.command == ctx.info_name), None)
    if kind is None:  # a command with the kind as its argument, such as `aligner size sft`
        kind = kinds().get(ctx.params.get("kind"))
    return completions(kind, incomplete) if kind else []


Profile = Annotated[
    str | None,
    typer.Option(
        help="A group of defaults: smoke, laptop, gpu or slurm.", autocompletion=_profiles_that_begin
    ),
]
Bundle = Annotated[
    Path | None, typer.Option(help="A workshop's bundle, which contains packages, model and recorded runs.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings, as in trainer.sft.max_steps=100; +key and ++key work too.",
        autocompletion=_settings_that_begin,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run folder, or its name below runs/.", autocompletion=runs_that_begin
    ),
]
