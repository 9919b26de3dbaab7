"""The commands that show, steer and pass on a run.

Each command imports its own dependencies.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from aligner_lib.cli.options import RUNS, RunName, runs_that_begin
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate import TARGETS
from aligner_lib.run_folder.exporters.services import SERVICES

commands = typer.Typer()


@commands.command()
def runs(root: Annotated[Path, typer.Argument(help="Where to look.")] = RUNS):
    """List the runs below a folder, newest first."""
    from aligner_lib.cli.run_tables import list_runs

    list_runs(root)


@commands.command()
def show(run: RunName):
    """Show a run's kind, status and latest metrics."""
    from aligner_lib.cli.run_tables import find_run, show_run

    show_run(find_run(run, RUNS))


@commands.command()
def explain(run: RunName):
    """Show what looks wrong in a run and from which step on, the likely cause, and where to look."""
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.run_folder.explain import explain

    typer.echo(str(explain(find_run(run, RUNS))))


@commands.command()
def stop(run: RunName):
    """Ask a run to save a checkpoint and end after its current step. An evaluation ends after its current policy."""
    from aligner_lib.cli.run_tables import find_run

    folder = find_run(run, RUNS)
    # the next attempt of a run that is over may wait in a queue: it stops at its start
    job = folder.latest_job() if folder.is_over else None
    if folder.is_over and (job is None or job.state.final):
        raise UserError(f"{folder.path} is not running, but {folder.status}")
    folder.request_stop()
    typer.echo(
        f"{folder.path} ends with a checkpoint after its current step, an evaluation after its current policy"
    )


@commands.command()
def undo(run: RunName):
    """Undo the last change of a run's learning rate or KL coefficient: the run continues from the checkpoint before."""
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.run_folder.set_aside import undo_change, undone

    folder = find_run(run, RUNS)
    typer.echo(undone(folder, *undo_change(folder)))


@commands.command()
def logs(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
):
    """Show a job's log; of a component as in runs/ppo/critic. A job that failed before its first line: the reason."""
    job, component = _job_and_component(run)
    is_empty = True
    for line in job.logs(follow, component):
        is_empty = False
        typer.echo(line.rstrip("\n"))
    if is_empty and (status := job.status).state == "FAILED":
        typer.echo(job.failure_lines(status))


@commands.command()
def log(
    run: RunName,
    to: Annotated[str, typer.Option(help=f"The service: {', '.join(SERVICES)}.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
):
    """Send a run's metrics and rollouts to a service; steps that the service has are not sent again."""
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.run_folder.exporters import tail

    last = tail.follow(find_run(run, RUNS), to, until_over=follow)
    typer.echo(f"{to} has all of {run}, up to step {last}")


@commands.command()
def share(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…", help="Run folders, or their names below runs/.", autocompletion=runs_that_begin
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("run.html"),
):
    """Write a page of runs: charts, responses, alarms and settings. The page opens in a browser without a network."""
    from aligner_lib.cli.run_tables import find_run
    from widgets.share.page import write_page

    page = write_page([find_run(run, RUNS) for run in runs], out)
    typer.echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB")


@commands.command("graduate")
def graduate_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run, or one of its checkpoints.", autocompletion=runs_that_begin
        ),
    ],
    to: Annotated[str, typer.Option(help=f"The library: {', '.join(TARGETS)}.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
    reward_model: Annotated[
        str | None, typer.Option(help="The reward model, if the run had it in another job.")
    ] = None,
):
    """Write a run for another library: weights, data, and a config that continues or repeats the run."""
    from aligner_lib.jobs.graduate import graduate
    from aligner_lib.models.resolve import BEST

    folder = run.removesuffix(BEST)
    source = RUNS / run if (RUNS / folder).is_dir() and not Path(folder).is_dir() else run
    notes = graduate(source, to, out, reward_model)
    typer.echo("\n".join([*notes, str(out)]))


@commands.command()
def cancel(run: RunName):
    """End a run's job at once, on any machine; `stop` saves a checkpoint first."""
    job = _job_of(run)
    try:
        state = job.cancel()
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{job.run} was not cancelled: {error}") from error
    typer.echo(f"{job.run}: {state}")


def _job_of(run: str):
    from aligner_lib.cli.run_tables import find_run
    from cluster import Job, JobNotFound

    folder = find_run(run, RUNS).path
    try:
        return Job.attach(folder)
    except JobNotFound as error:
        raise UserError(f"{error}; a run started by hand has no job") from None


def _job_and_component(run: str):
    """The job of a run, and the component whose log is the run's: the critic of runs/ppo/critic belongs to the job of runs/ppo."""
    from aligner_lib.cli.run_tables import find_run

    try:
        return _job_of(run), ""
    except UserError:
        folder = Path(run)
        with suppress(UserError):  # a component that has not begun has no run.json
            folder = find_run(run, RUNS).path.absolute()
        with suppress(UserError):
            job, component = _job_of(str(folder.parent)), folder.name
            if component in job.record.components:
                return job, component
        raise


@commands.command()
def serve(
    policy: Annotated[str, typer.Argument(help="A run, checkpoint, model folder or model name.")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free port.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            help="The token required from clients (else a random token).", envvar="ALIGNER_SERVE_TOKEN"
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="Answers generated at the same time.", min=1)] = 16,
):
    """Serve a policy behind an OpenAI-compatible endpoint: chat, completions, streaming."""
    from aligner_lib.jobs.serve_policy import serve as run

    run(policy, host=host, port=port, token=token, rows=rows, say=typer.echo)
