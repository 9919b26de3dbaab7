"""The commands that start a job, one for each kind, and the commands that estimate or measure a job.

Each command imports its own dependencies.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from aligner_lib.cli.options import RUNS, Overrides, Profile
from aligner_lib.config.kind import JobKind, load
from aligner_lib.config.kinds import kinds, kinds_that_train
from cluster.cores import thread_variables

commands = typer.Typer()
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
        from aligner_lib.jobs.local_ranks import needs_launcher, run_ranks

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
            raise typer.Exit(run_ranks(kind.command, config, profile, overrides))
        os.environ.update(thread_variables(ranks=1))  # libgomp reads the variables when torch loads libgomp
        load(kind.run)(kind.name, config, profile)

    commands.command(kind.command, help=kind.summary, context_settings={"help_option_names": []})(job)


for _kind in kinds().values():
    _add_job(_kind)


@commands.command()
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


@commands.command("profile")
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


@commands.command()
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


@commands.command()
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
