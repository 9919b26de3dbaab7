"""`python -m benchmarks.exporters`: how much exporters slow down the run that they follow.

The same SFT run is made in turn without exporters and with several exporters at once. The ratio of both runs of a pair counts, not
their seconds, because a machine's speed changes within minutes. The benchmark times a run's command from start to end, including
Python's own time, and the run's steps.

    --profile smoke       the profile of the runs
    --steps 800           of each run
    --pairs 3             after a pair that does not count
    --services NAME,NAME  in place of all installed services
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from statistics import median
from typing import NamedTuple

from aligner_lib.run_folder.exporters.services import SERVICES, lacking
from aligner_lib.run_folder.jsonl import JsonlReader
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial import Workspace
from benchmarks.options import documented_parser

SENT_WITHIN = 120.0  # seconds after a run's end


class Seconds(NamedTuple):
    """Seconds of a run: of its command, and of the median step of each half. The exporters start in the first half."""

    command: float
    step_of_first_half: float
    step_of_second_half: float


def timed(lab: Workspace, name: str, steps: int, services: list[str]) -> Seconds:
    """Make a run of SFT, followed by these services only."""
    settings = {
        "trainer.sft.max_steps": steps,
        "trainer.sft.val_check_interval": steps,
        "trainer.sft.save_interval": steps,
    }
    settings |= {f"exp_manager.create_{service}_logger": service in services for service in SERVICES}
    [command] = lab.commands("sft", name, **settings).values()
    log = lab.out / f"{name}.log"
    started = time.perf_counter()
    with log.open("w") as file:
        subprocess.run(command, check=True, stdout=file, stderr=file)
    seconds = time.perf_counter() - started
    run = lab.run(name)
    wait_until_sent(run, services, steps)
    steps_took = run.series("train/step_time")[1]
    middle = len(steps_took) // 2
    return Seconds(seconds, median(steps_took[:middle]), median(steps_took[middle:]))


def wait_until_sent(run: RunFolder, services: list[str], step: int) -> None:
    """Wait until these services have sent all records, so that no service works during the next run. Raises TimeoutError."""
    until = time.monotonic() + SENT_WITHIN
    while waiting := [name for name in services if last_sent(run, name) != step]:
        if time.monotonic() > until:
            raise TimeoutError(
                f"{', '.join(waiting)}: not all was sent within {SENT_WITHIN} s; see {run.path}/exporters"
            )
        time.sleep(0.1)


def last_sent(run: RunFolder, service: str) -> int | None:
    """The last step that a service has recorded."""
    notes = JsonlReader(run.path / "exporters" / f"{service}.jsonl").poll()
    return notes[-1]["step"] if notes else None


def main() -> None:
    arguments = _parse()
    services = arguments.services or [name for name in SERVICES if lacking(name) is None]
    with tempfile.TemporaryDirectory(prefix="aligner-exporters-") as folder:
        lab = Workspace(folder, arguments.profile)
        pairs = []
        for pair in range(arguments.pairs + 1):
            both = {}
            for is_followed in (True, False) if pair % 2 else (False, True):
                name = f"{pair}-{'with' if is_followed else 'without'}"
                both[is_followed] = timed(lab, name, arguments.steps, services if is_followed else [])
            if pair:  # the first pair warms up
                pairs.append((both[True], both[False]))
                print(f"pair {pair}: {both[True]} with, {both[False]} without", flush=True)
    print(
        f"\n{len(pairs)} pairs of {arguments.steps} steps, {arguments.profile}; with {', '.join(services)}\n"
    )
    print("| seconds | without | with | ratio, median (least to most) |\n| --- | --- | --- | --- |")
    for what in Seconds._fields:
        followed, alone = ([getattr(seconds[side], what) for seconds in pairs] for side in (0, 1))
        ratios = [a / b for a, b in zip(followed, alone)]
        spread = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"| {what} | {median(alone):.3f} | {median(followed):.3f} | {spread} |")


def _parse() -> argparse.Namespace:
    parser = documented_parser("exporters", __doc__)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--services", type=lambda text: text.split(","))
    return parser.parse_args()


if __name__ == "__main__":
    main()
