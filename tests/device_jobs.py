"""Jobs on the simulated accelerator, and what each stage of a PPO step copies between it and the CPU."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import astuple, fields
from pathlib import Path
from unittest.mock import patch

from forks import write_json
from simulated_accelerator import TO_CPU, TO_DEVICE, Copies, Copy, simulated_accelerator
from smoke_jobs import run_smoke_job

WEIGHTS, MOMENTS, BATCH = "weights", "Adam's moments", "batch"  # causes of copies


def run_on_device(kind: str, settings: list[str], copies: Path) -> None:
    """run_smoke_job on the device; `copies` becomes a JSON list of each PPO step's copies and batch size in bytes."""
    with simulated_accelerator() as seen:
        if kind != "ppo":
            run_smoke_job(kind, settings)
            return
        with ExitStack() as stack:
            steps = _named_by_stage(seen, stack)
            run_smoke_job(kind, settings)
    write_json(copies, steps)


def read_steps(copies: Path) -> list[tuple[list[Copy], int]]:
    """Each step's copies, and the bytes of its experience."""
    return [([Copy(*copy) for copy in step], size) for step, size in json.loads(copies.read_text())]


def table(copies: list[Copy]) -> str:
    """One step's copies as a table in Markdown."""
    rows = {}
    for copy in copies:
        row = rows.setdefault((copy.stage, copy.cause), Counter())
        row[copy.direction] += copy.bytes
        row["copies"] += 1
    lines = [
        "| stage | what | bytes to the device | bytes to the CPU | copies |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (stage, cause), row in rows.items():
        lines.append(f"| {stage} | {cause} | {row[TO_DEVICE]:,} | {row[TO_CPU]:,} | {row['copies']:,} |")
    return "\n".join(lines)


def _named_by_stage(seen: Copies, stack: ExitStack) -> list:
    """From now on copies have their stage and cause. Returns the list that each step is added to at its end."""
    from aligner_lib.kinds.policy_gradient.trainer import PolicyGradientTrainer
    from aligner_lib.kinds.ppo.trainer import PPOTrainer
    from aligner_lib.megatron import adam
    from aligner_lib.megatron.engine import FrozenWeights
    from aligner_lib.megatron.generate import ContinuousBatch
    from aligner_lib.rollouts.critic import Critic, RewardModel
    from aligner_lib.rollouts.policy import Policy

    def within(owner: object, name: str, **labels: str) -> None:
        work = getattr(owner, name)

        def labelled(*args, **more):
            with seen.within(**labels):
                return work(*args, **more)

        stack.enter_context(patch.object(owner, name, labelled))

    within(Policy, "batch", stage="generate", cause=BATCH)
    within(ContinuousBatch, "run", stage="generate", cause=BATCH)
    within(Critic, "values", stage="values", cause=BATCH)
    within(RewardModel, "score", stage="rewards", cause=BATCH)
    within(Policy, "logprobs", stage="log-probabilities", cause=BATCH)
    within(Policy, "reference_logprobs", stage="reference's log-probabilities", cause=BATCH)
    within(Critic, "train", stage="critic's updates", cause=BATCH)
    within(PolicyGradientTrainer, "_update", stage="actor's updates", cause=BATCH)
    within(FrozenWeights, "_exchange", cause=WEIGHTS)
    within(adam, "move", cause=MOMENTS)

    steps, batches = [], []
    step, learn = PPOTrainer.step, PPOTrainer.learn

    def one_step(trainer, number):
        before = len(seen.seen)
        metrics = step(trainer, number)
        steps.append([[astuple(copy) for copy in seen.seen[before:]], batches.pop()])
        return metrics

    def measured(trainer, number, experience, timers):
        tensors = [getattr(experience, field.name) for field in fields(experience)]
        batches.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
        return learn(trainer, number, experience, timers)

    stack.enter_context(patch.object(PPOTrainer, "step", one_step))
    stack.enter_context(patch.object(PPOTrainer, "learn", measured))
    return steps
