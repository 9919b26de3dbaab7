"""`python -m benchmarks.busy`: the cost of a training step on a machine with other work.

The benchmark times SFT steps of the laptop profile alone, beside one process with a core of its own, and beside three. In half of the
jobs, idle threads sleep early, as in normal jobs (`cluster/cores.py`). In the other half, idle threads spin with libgomp's default.
The two kinds of jobs alternate. Then five users train at once, for comparison with the sum of five trainings in turn.

    --steps 8 --repeats 3   steps of each job (the first two set libraries up and do not count), and jobs of each setting
    --users 5               how many users train at once; 0 skips the users, and 1 is refused. A user needs 3 GB with the laptop profile
    --profile laptop        smoke: a machine with less memory
    --out FOLDER            runs and busy.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from aligner_lib.tutorial.workspace.workspace import Workspace
from benchmarks.jobs import step_records
from benchmarks.kept import described_run
from benchmarks.options import documented_parser, whole_number
from cluster.cores import SPIN_COUNT

THREADS = {"sleep soon": SPIN_COUNT, "spin": "300000"}  # libgomp's own number of turns
BESIDE = {"nothing": 0, "one busy process": 1, "three busy processes": 3}
# limits, as multiples of an idle machine's step
BOUNDS = {"one busy process": 2.2, "three busy processes": 4.5}
USERS_BOUND = 1.15  # limit, as a multiple of the sum of the trainings in turn
WARM_UP = 2  # steps in which libraries set themselves up
BUSY = "while True: pass"


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Run busy processes, each with full use of a core. processes: their number."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def start(lab: Workspace, name: str, spin_count: str, steps: int) -> subprocess.Popen:
    """Start a new SFT job. spin_count: the number of turns for which an idle thread spins."""
    settings = {
        "trainer.sft.max_steps": steps,
        "trainer.sft.val_check_interval": steps,
        "trainer.sft.limit_val_batches": 1,
        "exp_manager.create_checkpoint_callback": False,
    }
    [command] = lab.commands("sft", name, **settings).values()
    log = (lab.out / f"{name.replace(' ', '-')}.log").open("wb")
    return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"GOMP_SPINCOUNT": spin_count})


def finish(job: subprocess.Popen, name: str) -> None:
    if job.wait():
        sys.exit(f"the job {name} ended with {job.returncode}; see its log")


def step_seconds(lab: Workspace, name: str) -> float:
    """The median step of a finished run."""
    return median(record["timers/step_time"] for record in step_records(lab.run(name), WARM_UP))


def measure_steps(lab: Workspace, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of a step for every repeat, by the work beside the job and by the behaviour of idle threads."""
    seconds = {beside: {threads: [] for threads in THREADS} for beside in BESIDE}
    for repeat in range(options.repeats):
        for beside, processes in BESIDE.items():
            for threads, spin_count in THREADS.items():
                name = f"{beside}-{threads}-{repeat}".replace(" ", "-")
                with busy(processes):
                    finish(start(lab, name, spin_count, options.steps), name)
                seconds[beside][threads].append(step_seconds(lab, name))
                print(f"{name}: {seconds[beside][threads][-1]:.2f} s a step", flush=True)
    return seconds


def measure_users(lab: Workspace, options: argparse.Namespace) -> dict[str, float]:
    """Wall-clock seconds of `users` trainings, in turn and at once, by the behaviour of idle threads."""
    walls = {}
    for threads, spin_count in THREADS.items():
        for users, rounds in ((1, options.users), (options.users, 1)):
            begin = time.monotonic()
            for number in range(rounds):
                names = [f"{threads}-{users}-{number}-{user}".replace(" ", "-") for user in range(users)]
                jobs = [start(lab, name, spin_count, options.steps) for name in names]
                for job, name in zip(jobs, names):
                    finish(job, name)
            order = "at once" if users > 1 else "one after another"
            walls[f"{threads}, {order}"] = time.monotonic() - begin
            print(
                f"{options.users} users, {threads}, {order}: {walls[f'{threads}, {order}']:.0f} s", flush=True
            )
    return walls


def table_of(seconds: dict[str, dict[str, list[float]]]) -> Table:
    table = Table(title="An SFT step beside other work, seconds", title_justify="left")
    for column in ("beside", "idle threads", "step", "lowest – highest", "of an idle machine's", "bound"):
        table.add_column(column, justify="right")
    for beside, by_threads in seconds.items():
        for threads, runs in by_threads.items():
            ratio = median(runs) / median(seconds["nothing"]["spin"])
            bound = BOUNDS.get(beside, 1.03) if threads == "sleep soon" else None
            table.add_row(
                beside,
                threads,
                f"{median(runs):.2f}",
                f"{min(runs):.2f} – {max(runs):.2f}",
                f"{ratio:.2f} ×",
                "" if bound is None else f"≤ {bound:g} {'held' if ratio <= bound else 'missed'}",
            )
    return table


def write(out: Path, figures: dict[str, object]) -> None:
    (out / "busy.json").write_text(json.dumps(figures, indent=1) + "\n")


def main(words: list[str] | None = None) -> None:
    parser = documented_parser("busy", __doc__)
    parser.add_argument("--steps", type=partial(whole_number, WARM_UP + 1), default=8)
    parser.add_argument("--repeats", type=partial(whole_number, 1), default=3)
    parser.add_argument("--users", type=int, default=5)
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--out", type=Path, default=Path("runs/busy"))
    options = parser.parse_args(words)
    if options.users == 1:
        parser.error("--users 1: one user has nobody to train beside; take 2 or more, or 0")
    lab = Workspace(options.out, options.profile)
    seconds = measure_steps(lab, options)
    figures = described_run("python -m benchmarks.busy", options) | {"step_seconds": seconds}
    write(options.out, figures)
    Console().print(table_of(seconds))
    if options.users:
        walls = measure_users(lab, options)
        write(options.out, figures | {"users_seconds": walls})
        for threads in THREADS:
            ratio = walls[f"{threads}, at once"] / walls[f"{threads}, one after another"]
            print(
                f"{options.users} users at once, idle threads {threads}: {ratio:.2f} × the sum (bound {USERS_BOUND})"
            )


if __name__ == "__main__":
    main()
