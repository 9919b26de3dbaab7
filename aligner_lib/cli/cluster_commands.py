"""`aligner cluster`: is the cluster ready for a job?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.schedulers import schedulers

commands = typer.Typer(
    help="Slurm or another scheduler: is the cluster ready for a job?", no_args_is_help=True
)


@commands.command("check")
def cluster_check(
    resources: Annotated[
        str | None, typer.Argument(help="A resources file; its requests are checked too.")
    ] = None,
    shared: Annotated[Path, typer.Option(help="The folder for run folders.")] = Path("."),
    probe: Annotated[bool, typer.Option(help="Start a small job to look at a compute node.")] = True,
    where: Annotated[
        str, typer.Option(help=f"The scheduler: auto (the first to answer), {', '.join(schedulers())}.")
    ] = "auto",
):
    """Check whether the scheduler is ready for a job: partitions, GPUs, the shared folder, Python, accounting."""
    from cluster import check

    findings = check(resources, shared, probe, where)
    typer.echo("\n".join(map(str, findings)))
    raise typer.Exit(0 if all(finding.ok or not finding.needed for finding in findings) else 1)
