"""Commands for the small trainer and critic, and what they leave behind."""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent


def trainer(run: Path, steps: int, *options: object) -> list[str]:
    return [sys.executable, str(HERE / "trainer.py"), str(run), str(steps), *map(str, options)]


def critic(run: Path, *options: str) -> list[str]:
    return [sys.executable, str(HERE / "critic.py"), str(run), *options]


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
