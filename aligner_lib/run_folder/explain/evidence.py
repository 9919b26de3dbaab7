"""A run's metrics and settings, in the form for the checks."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import cached_property
from typing import TypeVar

from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import flatten

ROLLOUT_BYTES = 16_000_000  # bytes read from the beginning of rollouts.jsonl

Value = TypeVar("Value")
Series = dict[int, float]  # step → finite value, in order of steps


class Evidence:
    """The records, settings and alarms of a run. run: a RunFolder, or a recording, which has the same interface."""

    def __init__(self, run):
        info = run.info
        self.kind: str = info.get("kind", "")
        self.settings = flatten(info.get("config", {}))
        # the last step with other settings than those of run.json: of a branch's parent, or of an earlier attempt; an older run
        # does not record the steps, so any earlier attempt may have had other settings
        others = info.get("other_settings_at", info.get("resumed_at", []))
        self.begun: int = max([info.get("parent", {}).get("step", 0), *others])
        # the steps after which a user changed the learning rate or the KL coefficient; an older run does not record the steps, so
        # after a resume any rate may be a user's
        self.changed_at: list[int] = info.get("changed_at", [0] if self.begun else [])
        self.validation_samples: int = info.get("validation_samples", 0)  # 0: unknown, of an older run
        self._precision: str | None = info.get("precision")
        self.alarms: list[dict] = run.alarms()
        records = (record for record in run.metrics() if isinstance(record.get("step"), int))
        self.records = sorted(records, key=lambda record: record["step"])
        self.read: set[str] = set()  # metrics read by checks
        self._run = run

    def of(self, metric: str) -> Series:
        """The logged values of a metric, by step."""
        self.read.add(metric)
        return {record["step"]: record[metric] for record in self.records if _is_number(record.get(metric))}

    def with_settings(self, series: dict[int, Value]) -> dict[int, Value]:
        """The values of a series, by step, at the steps with the settings of run.json. A check that reads settings checks only these
        steps."""
        return {step: value for step, value in series.items() if step > self.begun} if self.begun else series

    @cached_property
    def learnt_rollouts(self) -> dict[int, list[dict]]:
        """The training responses with at least a nonzero token advantage: step → records."""
        responses: dict[int, list[dict]] = {}
        for response in self._run.rollouts_reader().poll(ROLLOUT_BYTES):
            if response.get("split") == "train" and any(response.get("token_advantage") or ()):
                responses.setdefault(response["step"], []).append(response)
        return responses

    def loop(self, name: str, default: object = None) -> object:
        """The setting trainer.KIND.name; the default for a run that is older than the setting."""
        return self._setting(f"trainer.{self.kind}.{name}", default)

    def rollout(self, name: str, default: object = None) -> object:
        """The setting model.KIND.name."""
        return self._setting(f"model.{self.kind}.{name}", default)

    def model(self, name: str, default: object = None) -> object:
        """The setting model.name."""
        return self._setting(f"model.{name}", default)

    @property
    def own_functions(self) -> dict[str, str]:
        """The files with the user's own functions, by setting."""
        return {
            name: str(file)
            for name, file in self.settings.items()
            if name.startswith("functions.") and file is not None
        }

    @property
    def limits(self) -> Thresholds:
        """The limits of the run's alarms: the settings exp_manager.alarms, and the defaults where a run has none."""
        given = {
            limit.name: self.settings.get(f"exp_manager.alarms.{limit.name}") for limit in fields(Thresholds)
        }
        return Thresholds(**{name: value for name, value in given.items() if value is not None})

    @property
    def in_float32(self) -> bool:
        """Whether generation and training compute in float32, so that the same tokens give the same log-probabilities."""
        # older runs recorded only the setting, which a CPU may not follow
        precision = str(self._precision or self.settings.get("trainer.precision", "bf16"))
        return precision.startswith("32") and self.model("generation.backend", "megatron") == "megatron"

    @property
    def by_program(self) -> bool:
        """Whether programs give rewards, which may have any scale."""
        return any(share > 0 for share in self.of("train_rollouts/judged_by_program").values())

    def _setting(self, name: str, default: object) -> object:
        value = self.settings.get(name)
        return default if value is None else value


def first(series: Series) -> Series:
    """The first step of a series."""
    return dict(list(series.items())[:1])


def later(series: Series) -> Series:
    """All steps except the first."""
    return dict(list(series.items())[1:])


def combined(function, *series: Series) -> Series:
    """function(values …) at the common steps of all series. Results that are not finite numbers are left out."""
    steps = [step for step in series[0] if all(step in other for other in series)]
    values = {step: function(*(each[step] for each in series)) for step in steps}
    return {step: value for step, value in values.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    # False for NaN, and for an integer beyond the range of floats
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
