"""The project's own commands: what is installed, completion, tests and benchmarks.

Each command imports its own dependencies.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from aligner_lib.cli.checkout import folder_of_checkout, run_module, way_to_install, with_pin
from aligner_lib.cli.options import PASS_ON
from aligner_lib.errors import UserError

commands = typer.Typer()


@commands.command()
def doctor():
    """Show the installed and the missing parts, and the consequences of each missing part."""
    try:
        from aligner_lib.cli.doctor import report

        report()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        distributions = {"yaml": "pyyaml", "antlr4": "antlr4-python3-runtime", "dateutil": "python-dateutil"}
        pin = with_pin(distributions.get(package, package))
        raise UserError(
            f"{package} is not installed, so doctor can't look further: {way_to_install([pin])}"
        ) from error


@commands.command()
def completion(shell: Annotated[str, typer.Argument(help="bash or zsh.")]):
    """Print a script for completion: put `eval "$(aligner completion bash)"` into ~/.bashrc, or with zsh into ~/.zshrc."""
    from aligner_lib.cli.completion import script_of

    typer.echo(script_of(shell), nl=False)


@commands.command(context_settings=PASS_ON)
def test(context: typer.Context):
    """Run the tests (--since REF: those that a change can affect); further arguments go to pytest."""
    os.chdir(folder_of_checkout("tests").parent)
    run_module("pytest", context.args)


@commands.command(context_settings=PASS_ON)
def bench(context: typer.Context):
    """Compare speed with TRL and transformers; further arguments go to the benchmarks."""
    os.chdir(folder_of_checkout("benchmarks").parent)
    run_module("benchmarks", context.args)
