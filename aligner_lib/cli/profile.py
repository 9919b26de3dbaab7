"""`aligner profile`: checks the arguments before torch is imported, and prints the tables."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aligner_lib.config.compose import compose, keys
from aligner_lib.config.kinds import kinds, kinds_that_train
from aligner_lib.errors import UserError

if TYPE_CHECKING:
    from aligner_lib.jobs.step_profile import Stage, StepProfile


def check_kind(name: str, command: str = "profile") -> None:
    """Raise UserError for a kind of job that does not train or does not exist. command: of `aligner`, for the message."""
    trained = kinds_that_train()
    if name in trained:
        return
    if name in kinds():
        mistake = f"{name} has no steps of training"
    else:
        near = difflib.get_close_matches(name, trained, n=1, cutoff=0.5)
        mistake = f"there is no kind of job {name!r}" + "".join(f"; did you mean {other}?" for other in near)
    raise UserError(f"{mistake} (`aligner {command}` takes {', '.join(trained)})")


def check_trace(out: Path) -> None:
    """Make the trace's folder. Raises UserError for a name that a trace can't have."""
    if not out.name.endswith((".json", ".json.gz")):
        raise UserError(
            f"--out {out}: the name of a trace must end in .json or .json.gz, so Perfetto and Chrome can open the trace"
        )
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give a file, such as {out / 'trace.json'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out {out}: {out.parent} is not writable; name a file in another folder")


def quiet_profiler() -> None:
    """Silence Kineto, the recorder below torch's profiler. Call this function before torch is imported.

    Kineto writes notes on its own work to stderr. Without a GPU, Kineto reports the missing GPU as an error. With a GPU, Kineto
    is not silenced, because its errors explain why a trace lacks the GPU's work.
    """
    if not Path("/proc/driver/nvidia").exists():
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def settings_of_profile(kind: str, overrides: list[str], profile: str | None, steps: int) -> DictConfig:
    """Compose the job's settings for `steps` steps. Raises UserError for a job of several processes."""
    max_steps = [key for key in keys(kind) if key.startswith("trainer.") and key.endswith(".max_steps")]
    config = compose(kind, [*overrides, *(f"{key}={steps}" for key in max_steps)], profile)
    ranks = config.trainer.num_nodes * config.trainer.devices
    if ranks > 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            f"trainer.num_nodes={config.trainer.num_nodes}, trainer.devices={config.trainer.devices}: a profile "
            "records a single process: set both to 1, and tensor_model_parallel_size and "
            "pipeline_model_parallel_size too"
        )
    return config


def show_profile(kind: str, profile: StepProfile, out: Path) -> None:
    """Print the stages, the operators, and the path of the trace."""
    console, [step] = Console(), [stage for stage in profile.stages if stage.depth == 0]
    threads = f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
    console.print(f"[bold]{kind}, step {profile.step}[/bold] on {profile.device} with {threads}")
    console.print(_stages_table(profile.stages))
    caption = "bare pass: the same number of tokens through the same model and its loss alone, recorded too (median of three)"
    if any(stage.name == "generate" for stage in profile.stages):
        caption += ". The model generates token by token; the bare pass of generate reads whole rows"
    console.print(caption, style="dim", highlight=False)
    console.print()
    console.print(_operators_table(profile))
    console.print()
    before = f"{profile.unrecorded_seconds:.3f} s without the profiler (step {profile.step - 1})"
    console.print(f"one step: {step.seconds:.3f} s while recorded, {before}", highlight=False)
    place = f"trace {escape(str(out))}: open it at https://ui.perfetto.dev or chrome://tracing"
    console.print(place, highlight=False, soft_wrap=True)


def _stages_table(stages: list[Stage]) -> Table:
    table = _table("stage", "seconds", "share", "tokens", "bare pass", "ratio")
    whole = stages[0].seconds
    for stage in stages:
        name, share = "  " * stage.depth + escape(stage.name), f"{stage.seconds / whole:.1%}"
        row = [name, f"{stage.seconds:.4f}", share]
        if stage.bare_seconds is not None:
            ratio = f"{stage.seconds / stage.bare_seconds:.2f}"
            row += [f"{stage.tokens:,}", f"{stage.bare_seconds:.4f}", ratio]
        table.add_row(*row)
    return table


def _operators_table(profile: StepProfile) -> Table:
    table = _table("operator", "calls", "self seconds", "share")
    for operator in profile.operators:
        row = f"{operator.calls:,}", f"{operator.seconds:.4f}", f"{operator.share:.1%}"
        table.add_row(escape(operator.name), *row)
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
