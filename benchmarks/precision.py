"""`python -m benchmarks.precision`: the time that bf16 saves on this processor, for a step of each kind of job.

The benchmark times steps of the laptop profile in float32 and in bf16, in alternating jobs, on one thread each. A step's CPU seconds
are its time without the time in which the step waited for a processor, so other work on the machine matters little. Both precisions
start from the same weights and read the same samples in the same order. PPO and GRPO draw different responses in each precision, so
the benchmark also counts their tokens.

    --only sft,rm           some kinds of sft, rm, dpo, ppo, grpo
    --steps 4 --repeats 2   steps of each job (the first sets libraries up and does not count), and jobs of each precision
    --profile laptop        smoke: only to test that the benchmark runs
    --out FOLDER            runs and precision.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from aligner_lib.tutorial.workspace.workspace import Workspace
from benchmarks.jobs import run, step_records
from benchmarks.kept import described_run
from benchmarks.options import documented_parser, some_of, whole_number

PRECISIONS = ("32", "bf16")
KINDS = ("sft", "rm", "dpo", "ppo", "grpo")
# bounds on the speed of bf16, as multiples of float32's speed
BOUNDS = {"sft": 1.8, "rm": 2.0, "dpo": 2.0, "ppo": 2.0, "grpo": 1.7}
WARM_UP = 1  # steps in which libraries set themselves up
ONE_THREAD = {"LAB_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Step(NamedTuple):
    """A step: CPU seconds, the tokens read, and the loss, or the reward of drawn responses."""

    seconds: float
    tokens: int
    figure: float


def settings_of(lab: Workspace, kind: str, precision: str, steps: int) -> dict[str, object]:
    """The settings of a job that takes a few steps and validates once, on a few samples."""
    settings = {
        "trainer.precision": precision,
        "exp_manager.resume_if_exists": False,  # the steps of an earlier call are not measured again
        f"trainer.{kind}.max_steps": steps,
        f"trainer.{kind}.val_check_interval": steps,
        f"trainer.{kind}.save_interval": steps,
    }
    if kind in ("ppo", "grpo"):
        settings[f"model.{kind}.num_val_samples"] = 8
    else:
        settings[f"trainer.{kind}.limit_val_batches"] = 1
    if kind == "ppo":
        settings |= {"critic.trainer.precision": precision} | lab.conversations()
    return settings


def timed_steps(lab: Workspace, kind: str, precision: str, name: str, steps: int) -> list[Step]:
    """The steps of a job, without the first step. Ends the program when the job fails."""
    folder = run(lab, kind, name, settings_of(lab, kind, precision, steps), ONE_THREAD)
    computed = folder.info["precision"]
    if computed != precision:
        sys.exit(f"{name} computed in {computed}: this processor has no units for {precision}")
    return [
        Step(
            record["timers/step_time"] - record["timers/processor_wait"],
            record.get("train_rollouts/tokens") or record["train/tokens"],
            record.get("train_rollouts/rewards", record.get("train/loss")),
        )
        for record in step_records(folder, WARM_UP)
    ]


def compare(lab: Workspace, kind: str, options: argparse.Namespace) -> dict[str, list[list[Step]]]:
    """The steps of each job, by precision."""
    jobs: dict[str, list[list[Step]]] = {precision: [] for precision in PRECISIONS}
    for repeat in range(options.repeats):
        for precision in PRECISIONS:
            # The first jobs have the names from which later kinds start.
            first = repeat == 0 and precision == PRECISIONS[0]
            name = kind if first else f"{kind}-{precision}-{repeat}"
            jobs[precision].append(timed_steps(lab, kind, precision, name, options.steps))
            print(f"{name}: {median(step.seconds for step in jobs[precision][-1]):.2f} s a step", flush=True)
    return jobs


def ratio(jobs: dict[str, list[list[Step]]]) -> float:
    """How many times as fast bf16 is, by token: the median over repeats."""

    def per_token(steps: list[Step]) -> float:
        return sum(step.seconds for step in steps) / sum(step.tokens for step in steps)

    plain, quick = (jobs[precision] for precision in PRECISIONS)
    return median(per_token(before) / per_token(after) for before, after in zip(plain, quick))


def show(results: dict[str, dict[str, list[list[Step]]]]) -> None:
    """Print a row for each kind."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in (
        "CPU seconds of a step",
        "float32",
        "bf16",
        "times as fast, by token",
        "bound",
        "figure of step 2",
    ):
        table.add_column(column, justify="left" if not table.columns else "right")
    for kind, jobs in results.items():
        seconds = [
            median(step.seconds for steps in jobs[precision] for step in steps) for precision in PRECISIONS
        ]
        figures = [jobs[precision][0][0].figure for precision in PRECISIONS]
        table.add_row(
            kind,
            *(f"{value:.2f}" for value in seconds),
            f"{ratio(jobs):.2f}",
            f"≥ {BOUNDS[kind]:.1f} {'held' if ratio(jobs) >= BOUNDS[kind] else 'missed'}",
            " and ".join(f"{figure:.4f}" for figure in figures),
        )
    Console().print(table)


def main(options: argparse.Namespace) -> None:
    lab = Workspace(options.out, options.profile)
    results = {kind: compare(lab, kind, options) for kind in KINDS if kind in options.only}
    show(results)
    report = options.out / "precision.json"
    description = described_run("python -m benchmarks.precision", options)
    report.write_text(json.dumps(description | {"jobs": results}, indent=1) + "\n")
    print(f"all jobs: {report}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = documented_parser("precision", __doc__)
    parser.add_argument("--only", type=partial(some_of, KINDS), default=list(KINDS))
    parser.add_argument("--steps", type=partial(whole_number, WARM_UP + 1), default=4)
    parser.add_argument("--repeats", type=partial(whole_number, 1), default=2)
    parser.add_argument("--profile", default="laptop")
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / f"precision-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
