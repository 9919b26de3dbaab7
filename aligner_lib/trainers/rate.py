"""A config's learning-rate schedule as a callable."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from aligner_lib.algorithms.schedule import learning_rate


@dataclass(frozen=True)
class Rate:
    """Call it with an optimiser step (the first is 1) for the learning rate."""

    optim: DictConfig  # a config_schema.Optim
    max_steps: int

    def __call__(self, step: int) -> float:
        sched = self.optim.sched
        return learning_rate(
            step,
            peak=self.optim.lr,
            max_steps=sched.max_steps or self.max_steps,
            warmup_steps=sched.warmup_steps,
            constant_steps=sched.constant_steps,
            min_lr=sched.min_lr,
            name=sched.name,
        )
