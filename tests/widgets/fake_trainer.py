"""A trainer that trains nothing: writes a run folder, with the project's own writer, as fast or as slowly as asked.

Curves are shaped like those of a healthy run, or, with --kl-coef 0, like one that games its reward model.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

from aligner_lib.run_folder.writer import RunWriter

CONTROLS = ("kl_coef", "lr")
PROMPTS = (
    "How do I boil an egg?",
    "Write a <b>bold</b> title & a <script>window.stolen = 1</script> line.",
    "Name three rivers in Africa.",
    "Why is the sky blue?",
)
WORDS = "the water is warm so we wait five minutes and then it is done as you like it best".split()


def ppo_metrics(step: int, steps: int, kl_coef: float, chance: random.Random) -> dict[str, float]:
    """What the PPO trainer logs at a step, by the names in docs."""
    t = step / steps
    games = kl_coef == 0
    reward = -0.6 + 1.5 * (1 - math.exp(-4 * t)) + (2.0 * t if games else 0) + chance.gauss(0, 0.06)
    kl = (0.9 * t**1.5 if games else 0.05 * (1 - math.exp(-5 * t))) * (1 + chance.gauss(0, 0.06))
    length = 38 + (85 * t**2 if games else 4 * t) + chance.gauss(0, 1.5)
    ended = max(0.05, min(1.0, 0.97 - (0.85 * t**2 if games else 0) + chance.gauss(0, 0.01)))
    generate = 0.6 + length / 200
    first = step == 1
    return {
        "train_rollouts/rollout_size": 16,
        "train_rollouts/response_lengths": length + 14,
        "train_rollouts/prompt_lengths": 14.0,
        "train_rollouts/generation_length": length,
        "train_rollouts/tokens": 16 * (length + 14),
        "train_rollouts/rewards": reward,
        "train_rollouts/rewards_std": 0.45 - 0.2 * t,
        "train_rollouts/fraction_of_samples_properly_ended": ended,
        "train_rollouts/kl": 0.0 if first else kl,
        "train_rollouts/init_policy_kl": 0.0 if first else 2 * kl,
        "train_rollouts/rlhf_rewards": reward - 2 * kl_coef * kl * length,
        "train_rollouts/rewards_with_kl": reward / length - 2 * kl_coef * kl,
        "train_rollouts/explained_variance": 0.8 * t,
        "train_rollouts/consumed_samples": 16 * step,
        "train_optim/loss": chance.gauss(0, 0.02),
        "train_optim/ppo_ratio": 1.0 if first else 1 + chance.gauss(0, 0.004),
        "train_optim/ppo_ratio_clamped": 1.0 if first else 1 + chance.gauss(0, 0.003),
        "train_optim/first_ppo_ratio": 1.0,
        "train_optim/clip_fraction": 0.05 + abs(chance.gauss(0, 0.01)),
        "train_optim/scaled_entropy": 0.0,
        "train_rollouts/entropy": 1.9 - (1.7 * t if games else 0.3 * t),
        "train_rollouts/kl_coef": kl_coef,
        "train_optim/grad_norm": abs(chance.gauss(0.8, 0.15)),
        "train_optim/lr": 9e-7,
        "timers/rollout_time": generate + 0.55,
        "timers/generate": generate,
        "timers/logprobs": 0.2,
        "timers/init_logprobs": 0.2,
        "timers/critic_wait": 0.1,
        "timers/train_time": 0.9,
        "timers/step_time": generate + 1.5,
    }


def sft_metrics(step: int, steps: int, chance: random.Random) -> dict[str, float]:
    metrics = {
        "train/loss": 1.5 + 1.8 * math.exp(-6 * step / steps) + chance.gauss(0, 0.05),
        "train/grad_norm": abs(chance.gauss(1.2, 0.2)),
        "train/lr": 5e-6 * min(1.0, step / 10),
        "train/step_time": 0.5 + abs(chance.gauss(0, 0.02)),
    }
    if step % 10 == 0:
        metrics["validation/loss"] = 1.58 + 1.7 * math.exp(-6 * step / steps)
    return metrics


def rollouts(step: int, metrics: dict, chance: random.Random) -> list[dict]:
    """One record a prompt, as in rollouts.jsonl."""
    kl, records = metrics["train_rollouts/kl"], []
    for prompt in PROMPTS:
        length = max(3, round(metrics["train_rollouts/generation_length"] / 4))
        tokens = [" " + chance.choice(WORDS) for _ in range(length)]
        if "<script>" in prompt:
            tokens[1] = " <script>window.stolen = 2</script><img src=x onerror='window.stolen=3'>"
        record = {"step": step, "split": "train", "prompt": prompt, "response": "".join(tokens), "kl": kl}
        record |= {"reward": metrics["train_rollouts/rewards"] + chance.gauss(0, 0.4), "length": length}
        ended = metrics["train_rollouts/fraction_of_samples_properly_ended"]
        record |= {"finished": chance.random() < ended, "tokens": tokens}
        record["token_kl"] = [chance.gauss(kl, 0.3 + kl) for _ in tokens]
        record["token_advantage"] = [chance.gauss(0, 1) for _ in tokens]
        records.append(record)
    return records


def validation_rollouts(step: int, metrics: dict, chance: random.Random) -> list[dict]:
    """As the trainer logs them: without the tokens' KL."""
    left_out = ("tokens", "token_kl", "token_advantage", "kl")
    records = rollouts(step, metrics, chance)
    return [
        {key: value for key, value in record.items() if key not in left_out} | {"split": "validation"}
        for record in records
    ]


def train(path: Path, kind="ppo", steps=40, seconds=0.0, kl_coef=0.01, fail_at=0, seed=0, validate=0) -> None:
    """Write a whole run; `seconds` a step. Ends after the step in which `control/stop` appears, with a checkpoint.

    validate: steps between validations of PPO, which leave completions and `val_rollouts/rewards`; 0: none.
    """
    chance = random.Random(seed)
    config = {"trainer": {"ppo": {"initial_policy_kl_penalty": kl_coef}}}
    with RunWriter(path, kind=kind, config=config, seed=seed, hashes={}, max_steps=steps) as run:
        run.announce_controls(CONTROLS)
        run.start(0)
        controls = {"kl_coef": kl_coef, "lr": 9e-7}
        for step in range(1, steps + 1):
            time.sleep(seconds)
            if step == fail_at:
                raise FloatingPointError("the loss is NaN at step 7: lower the learning rate")
            if kind == "sft":
                metrics = sft_metrics(step, steps, chance)
                if controls["lr"] != 9e-7:
                    metrics["train/lr"] = controls["lr"]
            else:
                metrics = ppo_metrics(step, steps, kl_coef, chance)
                if validate and step % validate == 0:
                    metrics["val_rollouts/rewards"] = metrics["train_rollouts/rewards"] - 0.1
                metrics |= {"train_rollouts/kl_coef": controls["kl_coef"], "train_optim/lr": controls["lr"]}
            run.log(step, metrics)
            if kind == "ppo":
                run.log_rollouts(rollouts(step, metrics, chance))
            if validate and step % validate == 0:
                run.log_rollouts(validation_rollouts(step, metrics, chance))
            requests = run.requests(CONTROLS)
            controls |= requests.changes
            if requests.stop or requests.checkpoint:
                tmp_dir = run.checkpoint_tmp_dir(step)
                (tmp_dir / "weights").write_text("fake")
                run.accept_checkpoint(tmp_dir, step, keep=2, check=lambda folder: None)
            run.acknowledge()
            if requests.stop:
                run.finish("stopped")
                return
        run.finish("finished")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--kind", default="ppo", choices=["ppo", "sft"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--kl-coef", type=float, default=0.01)
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--validate", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    train(**vars(parser.parse_args()))
