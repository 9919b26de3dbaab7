"""Make the recordings in widgets/recordings anew: `python notebooks/record.py` (three quarters of an hour on two quiet cores).

It trains what notebooks 03 to 05 train, with the same settings, then PPO once more as notebook 05 breaks it, which it
stops as a reader does when the alarms sound, and what notebook 07 has no minutes for. A run that is there and over is not
made again.

    --profile laptop      whose models and settings
    --out runs/recordings where the runs lie
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.longer_runs import GRPO_ON_FORMS, PPO_ON_SUMS
from aligner_lib.tutorial.workspace import Workspace
from widgets.recording_file import SHIPPED, read, record

ROOT = Path(__file__).resolve().parents[1]
BROKEN = {  # as in notebook 05, in fewer steps: it is stopped long before the last one
    "trainer.ppo.initial_policy_kl_penalty": 0.0,
    "model.optim.lr": 1.5e-4,
    "trainer.ppo.max_steps": 20,
}
STOPPED_AFTER = 10  # steps
PPO_STOPPED_AFTER = 8
RECORDED = {"healthy": "ppo", "no-kl-penalty": "ppo-no-kl"} | {
    name: name for name in ("ppo-sums", "grpo-forms")
}  # recording → run
ROLLOUTS_A_STEP = 16


def main(profile: str, out: Path) -> None:
    lab = Workspace(out, profile)
    for kind in ("sft", "rm", "ppo"):
        if not lab.run(kind).is_over:
            print(f"{kind}: {lab.submit(kind).wait()}", flush=True)
    if not lab.run("ppo-no-kl").is_over:
        job = lab.submit("ppo", "ppo-no-kl", **BROKEN)
        stop_within(job, lab.run("ppo-no-kl"), STOPPED_AFTER)
        print(f"ppo-no-kl: {job.wait()}", flush=True)
    begins = {f"{of}pretrained_checkpoint.restore_from_path": lab.model() for of in ("", "critic.")}
    longer = {"ppo-sums": ("ppo", PPO_ON_SUMS | begins), "grpo-forms": ("grpo", GRPO_ON_FORMS)}
    for name, (kind, settings) in longer.items():
        if not lab.run(name).is_over:
            job = lab.submit(kind, name, **settings)
            if name == "ppo-sums":
                stop_within(job, lab.run(name), PPO_STOPPED_AFTER)
            print(f"{name}: {job.wait()}", flush=True)
    for recording, name in RECORDED.items():
        path = record(lab.run(name), SHIPPED / recording, name=recording, rollouts_a_step=ROLLOUTS_A_STEP)
        alarms = ", ".join(f"{alarm['name']} at step {alarm['step']}" for alarm in read(path).alarms)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KB, alarms: {alarms or 'none'}")


def stop_within(job, run: RunFolder, step: int) -> None:
    """Ask a run to end after this step when it is in it; returns when its job has ended."""
    while not job.state.final:
        if run.info.get("heartbeat", {}).get("step", 0) >= step - 1:
            run.request_stop()
        time.sleep(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "recordings")
    main(**vars(parser.parse_args()))
