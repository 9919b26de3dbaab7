"""The `aligner` command. Each command imports its own dependencies, so `--help` answers at once."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from aligner_lib import __version__
from aligner_lib.cli import (
    cluster_commands,
    data_commands,
    job_commands,
    learner_commands,
    model_commands,
    project_commands,
    run_commands,
    workshop_commands,
)
from aligner_lib.cli.checkout import ROOT
from aligner_lib.cli.completion import answer_a_shell
from aligner_lib.errors import UserError

app = typer.Typer(
    help="Learn RLHF by doing it: from a downloaded to an aligned language model, on Megatron Core.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
SECTIONS = (learner_commands, job_commands, run_commands, project_commands)
GROUPS = {
    "model": model_commands,
    "data": data_commands,
    "workshop": workshop_commands,
    "cluster": cluster_commands,
}
for _section in SECTIONS:
    app.add_typer(_section.commands)
for _name, _group in GROUPS.items():
    app.add_typer(_group.commands, name=_name)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"aligner {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
):
    """The options before a command."""


def main() -> None:
    """Run the command line. A user's mistake gives a message and exit code 2."""
    answer_a_shell()
    try:
        app()
    except (UserError, ValueError, OSError) as error:
        if not _is_for_users(error):
            raise
        rank = os.environ.get("RANK")
        typer.secho(f"{'error' if rank is None else f'error (rank {rank})'}: {error}", fg="red", err=True)
        sys.exit(2)
    except RuntimeError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0" or not _is_of_a_lost_rank(error):
            raise
        # a traceback would hide the other rank's message
        reason = str(error).partition("\n")[0]
        typer.secho(
            f"error (rank {rank}): lost another rank ({reason}): see that rank's error", fg="red", err=True
        )
        sys.exit(1)


def _is_of_a_lost_rank(error: RuntimeError) -> bool:
    """As in `parallel`, whose import takes seconds in a process that has no ranks."""
    parallel = sys.modules.get("aligner_lib.megatron.parallel")
    return parallel is not None and parallel.is_of_a_lost_rank(error)


def _is_for_users(error: Exception) -> bool:
    """Whether an error is shown as a sentence, and not as a traceback.

    A ValueError or OSError from this project names the value and the fix. An OSError with a file name concerns the user's path,
    no matter which library raised the error.
    """
    if isinstance(error, UserError | FileNotFoundError) or getattr(error, "filename", None) is not None:
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return any(
        raised_in.is_relative_to(ROOT / room) for room in ("aligner_lib", "data", "cluster", "widgets")
    )


if __name__ == "__main__":
    main()
