"""The `aligner` command. Each command imports its own dependencies, so `--help` answers at once."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from aligner_lib import __version__
from aligner_lib.cli import model_data
from aligner_lib.cli.completion import answer_a_shell
from aligner_lib.cli.workshop import workshop
from aligner_lib.config.kind import JobKind, load
from aligner_lib.config.kinds import kinds, kinds_that_train
from aligner_lib.errors import UserError
from cluster.cores import thread_variables
from cluster.schedulers import schedulers

ROOT = Path(__file__).resolve().parents[2]  # the checkout, which contains notebooks/, tests/ and benchmarks/
RUNS = Path("runs")

app = typer.Typer(
    help="Learn RLHF by doing it: from a downloaded to an aligned language model, on Megatron Core.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(model_data.model, name="model")
app.add_typer(model_data.data, name="data")
app.add_typer(workshop, name="workshop")
on_cluster = typer.Typer(
    help="Slurm or another scheduler: is the cluster ready for a job?", no_args_is_help=True
)
app.add_typer(on_cluster, name="cluster")


def _profiles_that_begin(incomplete: str) -> list[str]:
    from aligner_lib.config.compose import profiles

    return [name for name in profiles() if name.startswith(incomplete)]


def _runs_that_begin(incomplete: str) -> list[str]:
    from aligner_lib.run_folder.reader import find_runs

    names = {str(run.path.relative_to(RUNS)) for run in find_runs(RUNS)} | {
        str(run.path) for run in find_runs(RUNS)
    }
    return sorted(name for name in names if name.startswith(incomplete))


Profile = Annotated[
    str | None,
    typer.Option(
        help="A group of defaults: smoke, laptop, gpu or slurm.", autocompletion=_profiles_that_begin
    ),
]
Bundle = Annotated[
    Path | None, typer.Option(help="A workshop's bundle, which contains packages, model and recorded runs.")
]
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


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


# ---- the tutorial ---------------------------------------------------------------------------------------------------


@app.command()
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


@app.command()
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


@app.command()
def setup(bundle: Bundle = None):
    """Copy a bundle's model and recorded runs into the cache, after `./lab setup` has installed the packages."""
    from aligner_lib.tutorial.workshop.packing import take_over

    if bundle:
        take_over(bundle, typer.echo)


@app.command(context_settings=PASS_ON)
def jupyter(context: typer.Context):
    """Open JupyterLab with the first notebook; further arguments go to JupyterLab."""
    from aligner_lib.cli.jupyter import jupyterlab_arguments

    # JupyterLab's settings for widgets (docs/widgets.md); the user's own settings take precedence
    paths = [str(ROOT / "widgets" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    _run_module("jupyterlab", [*jupyterlab_arguments(_needed("notebooks")), *context.args])


@app.command()
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


# ---- jobs -----------------------------------------------------------------------------------------------------------

Run = Annotated[
    Path | None,
    typer.Option("--run", help="Run folder (else runs/KIND-TIME); an unfinished run is continued."),
]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print all settings as YAML, and stop.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Settings in YAML, as --print-config prints them; overrides come after."),
]
Help = Annotated[
    bool,
    typer.Option(
        "--help",
        help="Show the help and all settings, or only settings with a word in their names, and stop.",
    ),
]


def _settings_that_begin(ctx: typer.Context, incomplete: str) -> list[str]:
    """The settings of a job's command that a shell offers for completion."""
    from aligner_lib.cli.settings_help import completions

    kind = next((kind for kind in kinds().values() if kind.command == ctx.info_name), None)
    if kind is None:  # a command with the kind as its argument, such as `aligner size sft`
        kind = kinds().get(ctx.params.get("kind"))
    return completions(kind, incomplete) if kind else []


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings, as in trainer.sft.max_steps=100; +key and ++key work too.",
        autocompletion=_settings_that_begin,
    ),
]


def _add_job(kind: JobKind) -> None:
    """Add `aligner COMMAND` for a kind of job."""

    def job(
        context: typer.Context,
        overrides: Overrides = None,
        profile: Profile = None,
        config_file: ConfigFile = None,
        run: Run = None,
        print_config: PrintConfig = False,
        show_help: Help = False,
    ) -> None:
        from omegaconf import OmegaConf

        from aligner_lib.config.compose import compose, read_overrides, written
        from aligner_lib.jobs.torchrun import needs_launcher, relaunch

        if show_help:
            from aligner_lib.cli.settings_help import settings_help

            shown = settings_help(kind, compose(kind.name, (), profile), overrides or ())
            return typer.echo(shown if overrides else f"{context.get_help()}\n{shown}")
        overrides = [*(read_overrides(kind.name, config_file) if config_file else ()), *(overrides or ())]
        if run is not None:
            overrides.append(f"exp_manager.explicit_log_dir={written(run)}")
        config = compose(kind.name, overrides, profile)
        if print_config:
            return typer.echo(OmegaConf.to_yaml(config))
        if config.exp_manager.explicit_log_dir is None:
            config.exp_manager.explicit_log_dir = str(RUNS / f"{kind.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        if needs_launcher(config):
            relaunch(kind.command, config, profile, overrides)
        os.environ.update(thread_variables(ranks=1))  # libgomp reads the variables when torch loads libgomp
        load(kind.run)(kind.name, config, profile)

    app.command(kind.command, help=kind.summary, context_settings={"help_option_names": []})(job)


for _kind in kinds().values():
    _add_job(_kind)


@app.command()
def branch(
    parent: Annotated[
        str, typer.Argument(metavar="RUN", help="The parent: a run folder, or its name below runs/.")
    ],
    overrides: Overrides = None,
    at: Annotated[int, typer.Option(help="The last step shared by both runs.", min=0)] = 0,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="The branch's run folder (else beside its parent, RUN-at-STEP)."),
    ] = None,
):
    """Continue another run from a step, with other settings and the same prompts and random numbers.

    If the parent kept no checkpoint of this step, the steps after its last earlier checkpoint are computed again.
    """
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.jobs.branch import go_on

    go_on(find_run(parent, RUNS), at, run, list(overrides or ()))


@app.command("profile")
def profile_step(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(kinds_that_train())}.")],
    overrides: Overrides = None,
    profile: Profile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The trace, FILE.json or FILE.json.gz (else runs/profile-KIND-TIME.json)."),
    ] = None,
    warm_up: Annotated[int, typer.Option(help="Steps before the recorded step.", min=1)] = 2,
    run: Annotated[
        Path | None, typer.Option("--run", help="Keep the run folder here (else the folder is removed).")
    ] = None,
):
    """Record a step of a job: a trace for Perfetto, and the step's stages compared with the bare passes through the models.

    The command takes the settings of `aligner KIND` and runs the job in this process up to the recorded step. A bare pass puts
    the same number of tokens through the same model and nothing else, so a stage's ratio shows its overhead.
    """
    from aligner_lib.cli.profile import (
        check_kind,
        check_trace,
        quiet_profiler,
        settings_of_profile,
        show_profile,
    )
    from aligner_lib.config.compose import written

    check_kind(kind)
    out = out or RUNS / f"profile-{kind}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    overrides = list(overrides or ())
    if run is not None:
        overrides.append(f"exp_manager.explicit_log_dir={written(run)}")
    config = settings_of_profile(kind, overrides, profile, steps=warm_up + 1)
    check_trace(out)
    quiet_profiler()
    os.environ.update(thread_variables(ranks=1))  # libgomp reads the variables when torch loads libgomp
    from aligner_lib.jobs.step_profile import profile_step as record

    show_profile(kind, record(kind, config, profile, warm_up, out), out)


SizedKind = Annotated[str, typer.Argument(help=f"{', '.join(kinds_that_train())}.")]
SizedModel = Annotated[
    str | None,
    typer.Option(help="A name of the sizing table, a model folder or a fetched model (else the job's)."),
]
Gpus = Annotated[str, typer.Option(help="GPUsxGB or NODESxGPUsxGB: 8x80 is eight GPUs of 80 GB.")]


@app.command()
def size(
    kind: SizedKind,
    overrides: Overrides = None,
    profile: Profile = None,
    model: SizedModel = None,
    gpus: Gpus = "8x80",
):
    """Estimate, without any GPU, whether a job fits on these GPUs, and in which layout."""
    from aligner_lib.cli.profile import check_kind
    from aligner_lib.cli.size import GPUs, model_of_job, show_size
    from aligner_lib.config.compose import compose

    check_kind(kind, "size")
    config = compose(kind, list(overrides or ()), profile)
    fits = show_size(kind, config, model or model_of_job(kind, config, profile), GPUs.parse(gpus))
    raise typer.Exit(0 if fits else 1)


@app.command()
def cost(
    kind: SizedKind,
    overrides: Overrides = None,
    profile: Profile = None,
    model: SizedModel = None,
    gpus: Gpus = "8x80",
    steps: Annotated[
        int | None, typer.Option(help="Steps of the run (else trainer.*.max_steps).", min=1)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of a text on average (else half of the longest).", min=1)
    ] = None,
    tflops: Annotated[
        float, typer.Option(help="A GPU's peak in bf16, TFLOP/s; an H100 has 989.", min=1)
    ] = 989,
    mfu: Annotated[
        float, typer.Option(help="The share of the peak reached by training.", min=0.01, max=1)
    ] = 0.35,
    generation_mfu: Annotated[
        float, typer.Option(help="The share of the peak reached by generation.", min=0.001, max=1)
    ] = 0.05,
):
    """Estimate, without any GPU, the hours and GPU hours of a job, and show each assumption."""
    from aligner_lib.cli.cost import Speed, show_cost
    from aligner_lib.cli.profile import check_kind
    from aligner_lib.cli.size import GPUs, model_of_job
    from aligner_lib.config.compose import compose

    check_kind(kind, "cost")
    config = compose(kind, list(overrides or ()), profile)
    speed = Speed(tflops, mfu, generation_mfu)
    start = model or model_of_job(kind, config, profile)
    show_cost(kind, config, start, GPUs.parse(gpus), steps, tokens, speed)


# ---- runs -----------------------------------------------------------------------------------------------------------

RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run folder, or its name below runs/.", autocompletion=_runs_that_begin
    ),
]


@app.command()
def runs(root: Annotated[Path, typer.Argument(help="Where to look.")] = RUNS):
    """List the runs below a folder, newest first."""
    from aligner_lib.cli.run_tables import list_runs

    list_runs(root)


@app.command()
def show(run: RunName):
    """Show a run's kind, status and latest metrics."""
    from aligner_lib.cli.run_tables import find_run, show_run

    show_run(find_run(run, RUNS))


@app.command()
def explain(run: RunName):
    """Show what looks wrong in a run and from which step on, the likely cause, and where to look."""
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.run_folder.explain import explain

    typer.echo(str(explain(find_run(run, RUNS))))


@app.command()
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


@app.command()
def undo(run: RunName):
    """Undo the last change of a run's learning rate or KL coefficient: the run continues from the checkpoint before."""
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.run_folder.set_aside import undo_change, undone

    folder = find_run(run, RUNS)
    typer.echo(undone(folder, *undo_change(folder)))


@app.command()
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


@app.command()
def log(
    run: RunName,
    to: Annotated[str, typer.Option(help="tensorboard, wandb, mlflow or trackio.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
):
    """Send a run's metrics and rollouts to a service; steps that the service has are not sent again."""
    from aligner_lib.cli.run_tables import find_run
    from aligner_lib.run_folder.exporters import tail

    last = tail.follow(find_run(run, RUNS), to, until_over=follow)
    typer.echo(f"{to} has all of {run}, up to step {last}")


@app.command()
def share(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…", help="Run folders, or their names below runs/.", autocompletion=_runs_that_begin
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("run.html"),
):
    """Write a page of runs: charts, responses, alarms and settings. The page opens in a browser without a network."""
    from aligner_lib.cli.run_tables import find_run
    from widgets.share.page import write_page

    page = write_page([find_run(run, RUNS) for run in runs], out)
    typer.echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB")


@app.command("graduate")
def graduate_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run, or one of its checkpoints.", autocompletion=_runs_that_begin
        ),
    ],
    to: Annotated[str, typer.Option(help="trl, nemo-rl or verl.")],
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


@app.command()
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


@on_cluster.command("check")
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


@app.command()
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


# ---- the project ----------------------------------------------------------------------------------------------------


@app.command()
def doctor():
    """Show the installed and the missing parts, and the consequences of each missing part."""
    from aligner_lib.cli.doctor import report

    report()


@app.command()
def completion(shell: Annotated[str, typer.Argument(help="bash or zsh.")]):
    """Print a script for completion: put `eval "$(aligner completion bash)"` into ~/.bashrc, or with zsh into ~/.zshrc."""
    from aligner_lib.cli.completion import script_of

    typer.echo(script_of(shell), nl=False)


@app.command(context_settings=PASS_ON)
def test(context: typer.Context):
    """Run the tests (--since REF: those that a change can affect); further arguments go to pytest."""
    os.chdir(_needed("tests").parent)
    _run_module("pytest", context.args)


@app.command(context_settings=PASS_ON)
def bench(context: typer.Context):
    """Compare speed with TRL and transformers; further arguments go to the benchmarks."""
    os.chdir(_needed("benchmarks").parent)
    _run_module("benchmarks", context.args)


def _needed(folder: str) -> Path:
    if not (ROOT / folder).is_dir():
        raise UserError(
            f"{ROOT} has no {folder}/: the command works only in a clone of the project, so install the clone with "
            "pip install -e ."
        )
    return ROOT / folder


def _run_module(name: str, arguments: list) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", name, *map(str, arguments)])


# ---- mistakes -------------------------------------------------------------------------------------------------------


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
