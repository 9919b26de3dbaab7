"""The learning-rate schedule of a config, as a callable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omegaconf import DictConfig

from aligner_lib.algorithms.schedule import learning_rate


@dataclass
class LRSchedule:
    """Maps an optimizer step (the first is 1) to the learning rate. `override` is a learning rate that a user set instead."""

    optim: DictConfig  # a config.schema.Optim
    max_steps: int
    function: Callable[..., float] = learning_rate
    override: float | None = None

    def __call__(self, step: int) -> float:
        if self.override is not None:
            return self.override
        sched = self.optim.sched
        return self.function(
            step,
            peak=self.optim.lr,
            max_steps=sched.max_steps or self.max_steps,
            warmup_steps=sched.warmup_steps,
            constant_steps=sched.constant_steps,
            min_lr=sched.min_lr,
            name=sched.name,
        )
