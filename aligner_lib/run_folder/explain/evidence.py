"""A run's figures and settings, as the checks ask for them."""

from __future__ import annotations

import math
from functools import cached_property

from aligner_lib.run_folder.reader import flatten

ROLLOUT_BYTES = 16_000_000  # of rollouts.jsonl are read, from its beginning

Series = dict[int, float]  # step → value, in order; finite ones alone


class Evidence:
    """What a run has written. run: a RunFolder, or a recording, which has its interface."""

    def __init__(self, run):
        info = run.info
        self.kind: str = info.get("kind", "")
        self.settings = flatten(info.get("config", {}))
        self._precision: str | None = info.get("precision")
        self.alarms: list[dict] = run.alarms()
        records = (record for record in run.metrics() if isinstance(record.get("step"), int))
        self.records = sorted(records, key=lambda record: record["step"])
        self.read: set[str] = set()  # the metrics that were asked for
        self._run = run

    def of(self, metric: str) -> Series:
        """One metric, at the steps where it was logged."""
        self.read.add(metric)
        return {record["step"]: record[metric] for record in self.records if _is_number(record.get(metric))}

    @cached_property
    def learnt_rollouts(self) -> dict[int, list[dict]]:
        """The training responses that say their tokens' advantages, and have some: step → records."""
        found: dict[int, list[dict]] = {}
        for one in self._run.rollouts_reader().poll(ROLLOUT_BYTES):
            if one.get("split") == "train" and any(one.get("token_advantage") or ()):
                found.setdefault(one["step"], []).append(one)
        return found

    def loop(self, name: str, default: object = None) -> object:
        """The setting trainer.KIND.name; the default where the run is older than the setting."""
        return self._setting(f"trainer.{self.kind}.{name}", default)

    def rollout(self, name: str, default: object = None) -> object:
        """The setting model.KIND.name."""
        return self._setting(f"model.{self.kind}.{name}", default)

    def model(self, name: str, default: object = None) -> object:
        """The setting model.name."""
        return self._setting(f"model.{name}", default)

    @property
    def in_float32(self) -> bool:
        """Whether generation and training compute in float32, so that the same tokens give the same figures."""
        # runs of before it was recorded have the setting alone, which does not hold on a CPU
        precision = str(self._precision or self.settings.get("trainer.precision", "bf16"))
        return precision.startswith("32") and self.model("generation.backend", "megatron") == "megatron"

    @property
    def by_program(self) -> bool:
        """Whether programs give rewards, whose scale is anybody's."""
        return any(share > 0 for share in self.of("train_rollouts/judged_by_program").values())

    def _setting(self, name: str, default: object) -> object:
        value = self.settings.get(name)
        return default if value is None else value


def first(series: Series) -> Series:
    """Its first step alone."""
    return dict(list(series.items())[:1])


def later(series: Series) -> Series:
    """All but its first step."""
    return dict(list(series.items())[1:])


def combined(function, *series: Series) -> Series:
    """function(values …) at the steps that all have, where it gives a number."""
    steps = [step for step in series[0] if all(step in one for one in series)]
    values = {step: function(*(one[step] for one in series)) for step in steps}
    return {step: value for step, value in values.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
