"""The alarms of a monitor's runs, computed from the runs' Series."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder.alarms import (
    BASELINE,
    RECENT,
    VALIDATED,
    Alarm,
    Rule,
    Thresholds,
    active,
    metrics_read,
    stale,
)
from widgets.runs.series import Series

LOOK_BACK = 2000


class Alarms:
    """The active alarms of a run, with the first step of each alarm."""

    def __init__(self, run, series: Series, limits: Thresholds | None):
        """limits: the thresholds; None: the thresholds in the run's settings."""
        self.run, self.series, self._own = run, series, limits
        self.limits = limits or Thresholds()
        self._since: dict[str, int] = {}
        self._titles: dict[str, str] = {}

    @property
    def _rules(self) -> tuple[Rule, ...]:
        return alarms_of(self.run.kind)

    def now(self) -> list[dict]:
        """[{name, title, where, meaning, control}] of the active alarms."""
        self.limits = self._own or limits_of(self.run)
        alarms = self._alarms()
        self._since = {alarm.name: self._since.get(alarm.name) or self._began(alarm) for alarm in alarms}
        self._titles = {alarm.name: alarm.title for alarm in alarms}
        return [
            {
                "name": alarm.name,
                "title": alarm.title,
                "where": f"since step {self._since[alarm.name]}",
                "meaning": alarm.meaning,
                "control": alarm.control,
            }
            for alarm in alarms
        ]

    @property
    def beginnings(self) -> list[tuple[int, str]]:
        """(first step, title) of the active alarms at the last call of `now`, sorted by step."""
        return sorted((self._since[name], self._titles[name]) for name in self._since)

    def _began(self, alarm: Alarm) -> int:
        """The first step of an alarm. The method looks back over at most LOOK_BACK records, for monitors that open late."""
        series, step = self.series.whole, alarm.step
        begin = max(0, len(series) - LOOK_BACK)
        rows = series.table(metrics_read(self._rules), begin, len(series))
        first = series.table(metrics_read(self._rules), 0, BASELINE)
        validations = self._validations()
        for end in range(len(rows) - 1, 0, -1):
            recent = rows[max(0, end - RECENT) : end]
            until = [record for record in validations if record["step"] <= recent[-1]["step"]]
            alarms = active(self._rules, first[: begin + end], recent, self.limits, until)
            held = next((other for other in alarms if other.name == alarm.name), None)
            if held is None:
                return step
            step = held.step
        return step

    def _validations(self) -> list[dict]:
        """The `validations` of aligner_lib.run_folder.alarms.active, for rules that read the validation loss."""
        if VALIDATED not in metrics_read(self._rules):
            return []
        series = self.series.whole
        rows, losses = series.column(VALIDATED)
        if not len(rows):
            return []
        train_rows, train_losses = series.column("train/loss")
        ends = np.searchsorted(train_rows, rows, side="right")
        counts, sums = np.diff(ends, prepend=0), np.append(0.0, np.cumsum(train_losses))[ends]
        means = np.diff(sums, prepend=0.0) / np.maximum(counts, 1)
        return [
            {"step": series.steps[row], VALIDATED: loss} | ({"train/loss": mean} if count else {})
            for row, loss, mean, count in zip(*map(np.ndarray.tolist, (rows, losses, means, counts)))
        ]

    def _alarms(self) -> list[Alarm]:
        series = self.series.whole
        first = series.table(metrics_read(self._rules), 0, BASELINE)
        recent = series.table(metrics_read(self._rules), max(0, len(series) - RECENT), len(series))
        alarms = active(self._rules, first, recent, self.limits, self._validations())
        if bad := {metric: steps for metric, steps in series.not_finite.items() if steps}:
            step = min(steps[0] for steps in bad.values())
            odd = {"step": step, **{metric: float("nan") for metric, steps in bad.items() if step in steps}}
            alarms = active(self._rules, [], [odd], self.limits) + [
                alarm for alarm in alarms if alarm.name != "not_finite"
            ]
        if self.run.status == "running" and len(series):
            alarms.append(stale(self.run.heartbeat_age, series.steps[-1], self.limits))
        return [alarm for alarm in alarms if alarm is not None]


def limits_of(run) -> Thresholds:
    """The thresholds in a run's settings, exp_manager.alarms; the default thresholds before the run begins."""
    given = run.info.get("config", {}).get("exp_manager", {}).get("alarms", {})
    return Thresholds(
        **{limit.name: given[limit.name] for limit in fields(Thresholds) if limit.name in given}
    )
