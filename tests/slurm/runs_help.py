"""Commands for the small trainer and critic, and the metrics that they leave behind."""

import json
import sys
from pathlib import Path

from processes_help import until

from cluster import Job, Resources, State, submit

HERE = Path(__file__).parent
BOUND_S = 600  # nothing takes so long, except on a machine that is busy with something else
SHORT = Resources(time="5")


def trainer(run: Path, steps: int, *options: object) -> list[str]:
    return [sys.executable, str(HERE / "trainer.py"), str(run), str(steps), *map(str, options)]


def critic(run: Path, *options: str) -> list[str]:
    return [sys.executable, str(HERE / "critic.py"), str(run), *options]


def gate(run: Path) -> Path:
    """The file that `gated` trainers wait for: one beside the run folder, so that a sweep's members share it."""
    return run.parent / "gate"


def gated(run: Path, steps: int, at: int, *options: object) -> list[str]:
    """A trainer that waits at a step until its gate is there, or until it is asked to stop."""
    return trainer(run, steps, "--gate", gate(run), at, *options)


def submit_and_reach(step: int, commands, run: Path, resources=SHORT, **options) -> Job:
    """Submit a job to Slurm, and wait until its trainer has done the step."""
    job = submit(commands, run, "slurm", resources, **options)
    until(lambda: last_step(run) == step, f"step {step}")
    return job


def batch_log(job: Job) -> str:
    path = job.folder / "batch.log"
    return path.read_text() if path.exists() else ""


def states_until_the_end(job: Job, describe=lambda: "the end") -> set[State]:
    """Every state that is seen until the job's end. describe: says what is known of a job that does not end."""
    seen = set()

    def has_ended() -> bool:
        seen.add(job.state)
        return job.state.final

    until(has_ended, describe, BOUND_S)
    return seen


def losses(run: Path) -> list[tuple[int, int]]:
    """(step, loss) of every line of the metrics, in order: a step done twice shows."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [(record["step"], record["train/loss"]) for record in map(json.loads, lines)]


def unbroken_losses(steps: int) -> list[tuple[int, int]]:
    seed, expected = 1, []
    for step in range(1, steps + 1):
        seed = seed * 48271 % 2147483647
        expected.append((step, seed))
    return expected


def last_step(run: Path) -> int:
    """0 before the first one has been written: the file is there a moment earlier."""
    done = losses(run) if (run / "metrics.jsonl").exists() else []
    return done[-1][0] if done else 0
