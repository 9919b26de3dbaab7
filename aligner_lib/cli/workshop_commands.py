"""`aligner workshop`: a bundle for a room without a network, and a check of each seat.

Each command imports its own dependencies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer(
    help="For instructors (docs/workshop.md): a bundle, and a check of each seat.",
    no_args_is_help=True,
)
Profile = Annotated[str, typer.Option(help="smoke, laptop, gpu or slurm.")]


@commands.command()
def pack(
    profile: Profile = "laptop",
    out: Annotated[
        Path | None, typer.Option(help="The file to write (else aligner-lab-PROFILE.tar).")
    ] = None,
    tutorial: Annotated[
        Path | None, typer.Option(help='A finished tutorial, whose runs start="recorded" shows.')
    ] = None,
    wheels: Annotated[
        Path | None, typer.Option(help="A folder with the locks' wheels and uv's, to avoid any download.")
    ] = None,
):
    """Make a bundle: packages, model, recorded runs, hashes. `./lab tutorial --bundle FILE` needs no network."""
    from aligner_lib.tutorial.workshop.packing import pack as write

    path = write(profile, out or Path(f"aligner-lab-{profile}.tar"), tutorial, wheels, echo=typer.echo)
    typer.echo(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


@commands.command()
def preflight(
    profile: Profile = "laptop",
    shared: Annotated[
        Path | None, typer.Option(help="The room's folder: the findings go to FOLDER/SEAT, for Classroom.")
    ] = None,
    seat: Annotated[
        str | None, typer.Option(help="The seat's name (else a name that does not reveal yours).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Your name, if the instructor may see your name.")] = None,
):
    """Check a seat: memory, disk, model, folder, a kernel, a training step. Prints a line of JSON; exit code 0 (ready) or 1."""
    from aligner_lib.cli.preflight import as_line, link_to
    from aligner_lib.cli.preflight import preflight as look

    findings = look(profile, shared, seat, name)
    typer.echo(as_line(findings))
    for failed in findings["failed"]:
        typer.secho(f"not ready: {failed}: {findings['checks'][failed]}", fg="red", err=True)
    is_shared = shared is not None and "shared folder" not in findings["failed"]
    if is_shared and (command := link_to(shared / findings["seat"])):
        typer.echo(f"for the room's table: {command}", err=True)
    raise typer.Exit(0 if findings["ready"] else 1)
