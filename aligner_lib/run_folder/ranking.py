"""The best checkpoint of a run by a validation metric. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from aligner_lib.errors import UserError

GROUP = "exp_manager.checkpoint_callback_params"
# The names of metrics in NeMo-Aligner's documents and configurations.
NEMO_ALIGNER = {
    "validation_loss": "validation/loss",
    "val_loss": "validation/loss",
    "val_rewards": "val_rollouts/rewards",
    "val_global_rewards": "val_rollouts/rewards",
}


@dataclass(frozen=True)
class Ranking:
    """A metric that ranks checkpoints, and whether its smallest value is the best (else its largest)."""

    metric: str
    smallest: bool
    key: str = field(default="save_best", compare=False)
    """The setting's name, save_best or monitor."""

    @classmethod
    def of(cls, callback: Mapping) -> Ranking | None:
        """The ranking in exp_manager.checkpoint_callback_params; None without save_best.

        `monitor`, NeMo-Aligner's name of the setting, also takes NeMo-Aligner's names of metrics. Raises UserError if save_best
        and monitor name different metrics.
        """
        monitor, mode = callback.get("monitor"), callback.get("mode")
        monitored = NEMO_ALIGNER.get(monitor, monitor)
        metric = callback.get("save_best") or monitored
        if not metric:
            return None
        if monitored and monitored != metric:
            raise UserError(
                f"{GROUP}.save_best={metric} and {GROUP}.monitor={monitor} are two names of one setting: leave one of them out"
            )
        key = "save_best" if callback.get("save_best") else "monitor"
        return cls(metric, mode == "min" if mode else metric.endswith("loss"), key)

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

    def check(self, metrics: Iterable[str]) -> None:
        """Raise UserError if a validation does not have the metric. metrics: names, in which a `*` stands for any text."""
        if not any(fnmatchcase(self.metric, name) for name in metrics):
            there = ", ".join(sorted(name for name in metrics if not name.startswith("timers/")))
            raise UserError(
                f"{GROUP}.{self.key}={self.metric}: the validation has no metric of the name; known metrics: {there or 'none'}"
            )
