"""`python -m benchmarks.soak`: a long PPO run as two jobs, with faults at random moments, compared with an undisturbed run.

About every `--every` steps, one of FAULTS happens to the critic's job or to the actor, and the same command restarts the dead
job. At the end both runs must have bitwise equal weights and optimizer states.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.workspace.usual_resources import critic_and_actor_here
from aligner_lib.tutorial.workspace.workspace import Workspace
from benchmarks.kept import described_run
from cluster.rendezvous import free_port

BOUND_S = 1800.0  # without a step for so long, the soak has failed
POLL_S = 0.05
FAULTS = ("critic killed", "tritonserver killed", "stub killed", "critic stopped", "actor killed")


class Part:
    """A job with restarts after each death."""

    def __init__(self, command: list[str], run: RunFolder, log: Path):
        self.command, self.run, self.log = command, run, log
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def child(self, name: str) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # the process ended during the search
                if name in child.name():
                    return child
        raise LookupError(f"process {self.process.pid} has no child {name}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    options = _parse()
    lab = Workspace(options.out, "smoke")
    settings = {
        "trainer.ppo.max_steps": options.steps,
        "trainer.ppo.save_interval": 10,
        "trainer.ppo.val_check_interval": options.steps,
        "remote_critic_rm.timeout": BOUND_S,
    }
    unbroken = lab.submit_ppo("in-process", "unbroken", **settings)
    unbroken.wait()
    print(f"unbroken: {lab.run('unbroken').status}, {lab.run('unbroken').path}", flush=True)
    started = time.monotonic()
    happened = soak(lab, settings, options)
    seconds = time.monotonic() - started
    different = compare(lab)
    figures = described_run("python -m benchmarks.soak", options) | {
        "steps": options.steps,
        "faults": happened,
        "seconds": round(seconds),
        "tensors_that_differ": different,
        "seed": options.seed,
    }
    (Path(options.out) / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    sys.exit(shortcoming(different, len(happened), options.steps, options.every))


def shortcoming(different: list[str], faults: int, steps: int, every: int) -> str | None:
    """The reason why the soak has failed, or None. A run with too few faults is also a failure, because it shows nothing."""
    if different:
        return f"{len(different)} tensors differ"
    if faults < steps / every / 2:
        return f"{faults} faults have happened, and {steps} steps with one in {every} ask for half of {steps // every}"
    return None


def soak(lab: Workspace, settings: dict, options: argparse.Namespace) -> list[dict]:
    """Run to the end. Returns the faults with their steps, and the seconds until the next completed step."""
    critic_run, actor_run = lab.critic_of("soaked"), lab.run("soaked")
    port = {"critic.trainer.ppo.port": free_port()}
    commands = lab.commands("ppo", "soaked", critic_and_actor_here(settings), **settings, **port)
    critic = Part(commands["critic"], critic_run, Path(options.out) / "critic.log")
    actor = Part(commands["actor"], actor_run, Path(options.out) / "actor.log")
    critic.start()
    actor.start()
    draw, happened = random.Random(options.seed), []
    next_at = draw.randint(options.every // 2, options.every * 3 // 2)
    while next_at < options.steps:
        _until(lambda at=next_at: _step(actor_run) >= at or _ended(actor), f"step {next_at}")
        # the fault comes at a random moment of the following steps
        time.sleep(draw.random() * options.spread)
        if ended := [part for part in (actor, critic) if _ended(part)]:
            print(f"{ended[0].run.path} has ended ({ended[0].run.status}): no more faults", flush=True)
            break
        fault, step = draw.choice(FAULTS), _step(actor_run)
        begun = time.monotonic()
        _strike(fault, critic, actor)
        _until(lambda step=step: _step(actor_run) > step or _ended(actor), f"a step after {step} ({fault})")
        happened.append({"step": step, "fault": fault, "seconds": round(time.monotonic() - begun, 1)})
        print(f"step {step}: {fault}; the next step was done {happened[-1]['seconds']} s later", flush=True)
        next_at = _step(actor_run) + draw.randint(options.every // 2, options.every * 3 // 2)
    for part in (actor, critic):
        _until(lambda part=part: part.process.poll() is not None, f"the end of {part.run.path}")
    return happened


def _strike(fault: str, critic: Part, actor: Part) -> None:
    """Cause a fault, and restart the jobs that died."""
    if fault == "actor killed":
        actor.kill()
        actor.start()
        return
    if fault == "critic killed":
        critic.kill()
    elif fault == "critic stopped":
        os.kill(critic.process.pid, signal.SIGSTOP)
        _until(lambda: "interrupted" in actor.run.info.get("message", ""), "the actor to notice")
        critic.kill()
    else:
        child = critic.child("tritonserver" if fault == "tritonserver killed" else "triton_python")
        child.kill()
        _until(lambda: critic.process.poll() is not None, "the critic to end without its server")
    critic.start()


def compare(lab: Workspace) -> list[str]:
    """Names of the tensors that differ between the last checkpoints of the disturbed and the undisturbed run."""
    unbroken = _tensors(lab.run("unbroken").latest_checkpoint())
    soaked = _tensors(lab.run("soaked").latest_checkpoint())
    critic = _tensors(lab.critic_of("soaked").latest_checkpoint())
    soaked |= {f"critic/{name}": value for name, value in critic.items()}
    names = sorted(unbroken.keys() | soaked.keys())
    assert names, "there are no tensors to compare"
    return [name for name in names if unbroken.get(name) != soaked.get(name)]


def _tensors(checkpoint: Path) -> dict[str, bytes]:
    from aligner_lib.models.tensor_store import StoreReader

    tensors = {}
    for folder in {path.parent for path in checkpoint.rglob("*.safetensors")}:
        store, place = StoreReader(folder), folder.relative_to(checkpoint).as_posix()
        tensors |= {f"{place}/{name}": store.read_whole(name).numpy().tobytes() for name in store.names()}
    return tensors


def _step(run: RunFolder) -> int:
    records = run.metrics()
    return records[-1]["step"] if records else -1


def _ended(part: Part) -> bool:
    return part.process.poll() is not None


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {BOUND_S:.0f} s: {what}")
        time.sleep(POLL_S)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", default="runs/soak", help="folder for everything that it makes [runs/soak]")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between faults, about [20]")
    parser.add_argument(
        "--spread", type=float, default=3.0, help="seconds over which a fault's moment is drawn [3]"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
