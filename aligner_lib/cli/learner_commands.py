"""The learner's commands: the tutorial, its pages, JupyterLab and the learner's progress.

Each command imports its own dependencies.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from aligner_lib.cli.checkout import ROOT, folder_of_checkout, run_module
from aligner_lib.cli.options import PASS_ON, RUNS, Bundle

commands = typer.Typer()


@commands.command()
def tutorial(
    profile: Annotated[str, typer.Option(help="smoke (seconds), laptop (minutes), gpu or slurm.")] = "laptop",
    only: Annotated[str | None, typer.Option(help="Only these notebooks, as in 03,04.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder (else runs/tutorial-PROFILE-TIME).")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", help="A notebook parameter, name=value; may be repeated.")
    ] = None,
    bundle: Bundle = None,
):
    """Run the notebooks in order and write a report: data, SFT, reward model, PPO, comparison."""
    from aligner_lib.tutorial.execution import run_notebooks
    from widgets.share.page import write_page

    if bundle:
        setup(bundle)
    finished = run_notebooks.run(
        notebooks=run_notebooks.choose(ROOT / "notebooks" / "solved", only),
        profile=profile,
        out=out or run_notebooks.default_output(RUNS, profile, partial=only is not None),
        parameters=run_notebooks.parse_parameters(parameter or ()),
        write_page=write_page,
    )
    raise typer.Exit(0 if finished else 1)


@commands.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A workspace: the notebooks' `out`.")],
):
    """Write the report of notebooks that ran elsewhere, for example in papermill: results, runs and FOLDER/notebooks."""
    from aligner_lib.tutorial.execution import run_notebooks
    from widgets.share.page import write_page

    typer.echo(run_notebooks.report(folder, write_page, typer.echo))


@commands.command()
def site(
    source: Annotated[
        Path | None, typer.Option("--from", help="The folder of a tutorial (else the newest below runs/).")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the built site.")] = Path("site"),
):
    """Build the executed notebooks and the docs as static pages, with monitors, quizzes and a bug hunt that need no kernel."""
    from aligner_lib.tutorial.site.build_site import build, newest_tutorial
    from widgets.share.page import write_page, write_quiz

    typer.echo(build(ROOT, source or newest_tutorial(RUNS), out, write_page, write_quiz))


@commands.command()
def setup(bundle: Bundle = None):
    """Copy a bundle's model and recorded runs into the cache, after `./lab setup` has installed the packages."""
    from aligner_lib.tutorial.workshop.packing import take_over

    if bundle:
        take_over(bundle, typer.echo)


@commands.command(context_settings=PASS_ON)
def jupyter(context: typer.Context):
    """Open JupyterLab with the first notebook; further arguments go to JupyterLab."""
    from aligner_lib.cli.jupyter import jupyterlab_arguments

    # JupyterLab's settings for widgets (docs/widgets.md); the user's own settings take precedence
    paths = [str(ROOT / "widgets" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    run_module("jupyterlab", [*jupyterlab_arguments(folder_of_checkout("notebooks")), *context.args])


@commands.command()
def progress(
    folder: Annotated[
        Path | None, typer.Argument(help="A workspace: the notebooks' `out` (else the newest below runs/).")
    ] = None,
    portfolio: Annotated[
        Path | None, typer.Option(help="Write your work and results as an HTML page to FILE.")
    ] = None,
    name: Annotated[str, typer.Option(help="Your name on the page (else the page has no name).")] = "",
):
    """Show your progress in the notebooks: exercises, quizzes and runs."""
    from aligner_lib.cli.progress import find_workspace, show_progress

    folder = find_workspace(folder, RUNS)
    show_progress(folder)
    if portfolio is not None:
        from aligner_lib.tutorial.report.portfolio import write_portfolio

        typer.echo(f"portfolio {write_portfolio(portfolio, folder, name)}")
