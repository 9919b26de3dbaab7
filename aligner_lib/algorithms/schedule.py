"""The learning rate as a function of the optimizer step alone, so a resumed run needs no scheduler state."""

from __future__ import annotations

import math


def learning_rate(
    step: int,
    *,
    peak: float,
    max_steps: int,
    warmup_steps: int = 0,
    constant_steps: int = 0,
    min_lr: float = 0.0,
    name: str = "CosineAnnealing",
) -> float:
    """The learning rate of an optimizer step (the first step is 1).

    The rate rises linearly from peak / (warmup_steps + 1), decays along a cosine from peak to min_lr, and stays at min_lr for
    constant_steps. With name="constant" or a min_lr above peak, the rate stays at peak after the warm-up. All counts are
    optimizer steps. Raises ValueError for another name.

    Source: NeMo's CosineAnnealing, which NeMo-Aligner uses (cosine decay: arXiv:1608.03983).
    """
    if step <= warmup_steps:
        return peak * step / (warmup_steps + 1)
    if name == "constant":
        return peak
    if name != "CosineAnnealing":
        raise ValueError(f"model.optim.sched.name is {name!r}, but must be CosineAnnealing or constant")
    decay_steps = max(max_steps - warmup_steps - constant_steps, 1)
    progress = min((step - warmup_steps - 1) / decay_steps, 1.0)
    min_lr = min(min_lr, peak)
    return min_lr + (peak - min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
