"""The best checkpoint of a run by a validation metric. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aligner_lib.errors import UserError

GROUP = "exp_manager.checkpoint_callback_params"
# The names of NeMo-Aligner's documents and configurations for the loss on held-out samples.
LOSS_IN_NEMO = {"validation_loss": "validation/loss", "val_loss": "validation/loss"}


@dataclass(frozen=True)
class Ranking:
    """A metric that ranks checkpoints, and whether its smallest value is the best (else its largest)."""

    metric: str
    smallest: bool

    @classmethod
    def of(cls, callback: Mapping) -> Ranking | None:
        """The ranking in exp_manager.checkpoint_callback_params; None without save_best.

        `monitor`, NeMo-Aligner's name of the setting, also takes NeMo-Aligner's names of the loss. Raises UserError if save_best
        and monitor name different metrics.
        """
        monitor, mode = callback.get("monitor"), callback.get("mode")
        monitored = LOSS_IN_NEMO.get(monitor, monitor)
        metric = callback.get("save_best") or monitored
        if not metric:
            return None
        if monitored and monitored != metric:
            raise UserError(
                f"{GROUP}.save_best={metric} and {GROUP}.monitor={monitor} are two names of one setting: leave one of them out"
            )
        return cls(metric, mode == "min" if mode else metric.endswith("loss"))

    def best_step(self, records: Iterable[Mapping]) -> int | None:
        """The step of the best value in the records of metrics.jsonl, or the first of several best steps; None without values.

        NaN is never the best. Step 0 counts: if no later validation is better, no checkpoint is the best.
        """
        values = [
            (record["step"], value) for record in records if (value := record.get(self.metric)) is not None
        ]
        values = [(step, value) for step, value in values if not math.isnan(value)]
        if not values:
            return None
        return min(values, key=lambda pair: pair[1] if self.smallest else -pair[1])[0]

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raise UserError if a validation does not have the metric."""
        if self.metric not in metrics:
            there = ", ".join(sorted(name for name in metrics if not name.startswith("timers/")))
            raise UserError(
                f"{GROUP}.save_best={self.metric}: the validation has no metric of the name; known metrics: {there or 'none'}"
            )
