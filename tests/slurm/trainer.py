"""A trainer in small: what the dispatch needs of a real one, and nothing else.

    python trainer.py RUN STEPS [--gate FILE AT] [--fail-at N] [--critic]

It counts steps, logs a "loss" that depends on all earlier steps, checkpoints each step, resumes from the last
checkpoint, and ends with a checkpoint on RUN/control/stop and on SIGTERM. Rank 0 does it all; other ranks follow.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

BOUND_S = 300


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--gate", nargs=2, help="wait at step AT until FILE exists")
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--critic", action="store_true", help="find the critic first, and print its host")
    args = parser.parse_args()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append("SIGTERM"))
    end = args.run / "job" / f"end-{os.environ['ALIGNER_JOB_ATTEMPT']}"
    if os.environ["RANK"] == "0":
        train(args, stop)
        end.touch()
    else:
        wait_for(lambda: end.exists() or stop)


def wait_for(condition):
    deadline = time.monotonic() + BOUND_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def critic_host(run: Path) -> str | None:
    """Where the critic of this very attempt is: an earlier one's announcement is still there."""
    from cluster.rendezvous import announced

    critic = announced(run, "critic")
    return critic["host"] if critic and critic["attempt"] == os.environ["ALIGNER_JOB_ATTEMPT"] else None


def train(args, stop: list[str]) -> None:
    checkpoint, control = args.run / "checkpoint.json", args.run / "control" / "stop"
    if args.critic:
        print("critic at", wait_for(lambda: critic_host(args.run)), flush=True)
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "seed": 1}
    print("resumed at step", state["step"], flush=True)
    while state["step"] < args.steps:
        if state["step"] == args.fail_at:
            raise ValueError(f"loss is nan at step {state['step']}")
        # a chain: a lost or a repeated step changes all that follow
        state = {"step": state["step"] + 1, "seed": state["seed"] * 48271 % 2147483647}
        with (args.run / "metrics.jsonl").open("a") as file:
            record = {"step": state["step"], "time": time.time(), "train/loss": state["seed"]}
            file.write(json.dumps(record) + "\n")
        write(checkpoint, state)
        write_status(args.run, "running", state["step"])
        if args.gate and state["step"] == int(args.gate[1]):
            wait_for(lambda: Path(args.gate[0]).exists() or stop or control.exists())
        if stop or control.exists():
            print("stopping for", stop or "control/stop", "at step", state["step"], flush=True)
            return write_status(args.run, "stopped", state["step"])
    if args.critic:
        (args.run / "critic-stop").touch()
    write_status(args.run, "finished", state["step"])


def write_status(run: Path, status: str, step: int) -> None:
    write(run / "run.json", {"status": status, "heartbeat": {"time": time.time(), "step": step}})


def write(path: Path, value: dict) -> None:
    """The whole file or none of it, whenever the process is killed."""
    tmp_file = path.with_suffix(".tmp")
    tmp_file.write_text(json.dumps(value))
    tmp_file.replace(path)


if __name__ == "__main__":
    main()
