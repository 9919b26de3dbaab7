"""Explains a run: the first step that looks wrong, the likely causes, and the places to look.

    from aligner_lib.run_folder.explain import explain

    explain(lab.run("ppo"))

The module reads the metrics, settings and alarms of a run folder or a recording, for any kind of job. The module does not
import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aligner_lib.run_folder.explain import checks_of_rollouts, checks_of_signs  # noqa: F401, they add to CHECKS
from aligner_lib.run_folder.explain.causes import CAUSES, Cause
from aligner_lib.run_folder.explain.checks import CHECKS, Check, Quantity
from aligner_lib.run_folder.explain.evidence import Evidence
from aligner_lib.run_folder.set_aside import way_back

SHOWN_CAUSES = 3


@dataclass(frozen=True)
class Reading:
    """The result of a check on a run. step: the first step outside the healthy range; None: all steps are inside."""

    check: Check
    quantity: Quantity
    step: int | None

    @property
    def is_off(self) -> bool:
        return self.step is not None

    @property
    def is_fault(self) -> bool:
        """Whether the quantity is outside its range and more than a clue, which alone is not a fault."""
        return self.is_off and not self.check.is_clue

    @property
    def name(self) -> str:
        return self.check.name

    def __str__(self) -> str:
        values, healthy, shown = self.quantity.values, self.quantity.healthy, self.quantity.shown
        if not self.is_off:
            low, high = shown(min(values.values())), shown(max(values.values()))
            return f"{self.check.figure}: {low if low == high else f'{low} to {high}'} (healthy: {healthy})"
        last = next(reversed(self.quantity.off()))
        more = "" if last == self.step else f", and {shown(values[last])} at step {last}"
        return f"{self.check.figure} is {shown(values[self.step])} at step {self.step}{more}; healthy: {healthy}, because {self.check.why}"


@dataclass(frozen=True)
class Diagnosis:
    """A cause with the evidence for the cause and against it."""

    cause: Cause
    evidence_for: list[str]
    evidence_against: list[str]
    unexplained: list[str] = field(default_factory=list)
    """Metrics outside their ranges that the cause would not change."""

    @property
    def fits(self) -> bool:
        """Whether no evidence contradicts the cause, and the cause explains all metrics outside their ranges."""
        return not self.evidence_against and not self.unexplained

    @property
    def weight(self) -> tuple[int, int, int]:
        """The sort key: evidence against a cause counts first, then the number of unexplained metrics."""
        return (-len(self.evidence_against), -len(self.unexplained), len(self.evidence_for))


@dataclass(frozen=True)
class Explanation:
    """The explanation of a run's metrics. `print` the object, or let a notebook show it."""

    run: str
    failure: str
    """How a failed or lost run ended; "" for other runs."""
    steps: int
    """Number of records."""
    readings: list[Reading]
    diagnoses: list[Diagnosis]
    """The most likely cause comes first."""
    alarms: list[dict] = field(default_factory=list)
    """The alarms that the run raised."""
    unseen: list[Check] = field(default_factory=list)
    """Checks for which the run lacks metrics or settings."""
    metrics: frozenset[str] = frozenset()
    """The metrics that the checks read."""
    way_back: str = ""
    """How to undo the change of settings before the failure, the alarm or the first odd metric."""
    own_functions: dict[str, str] = field(default_factory=dict)
    """The files with the user's own functions, by setting."""

    @property
    def off(self) -> list[Reading]:
        """The readings that are faults, the earliest first."""
        faults = [reading for reading in self.readings if reading.is_fault]
        return sorted(faults, key=lambda reading: reading.step)

    @property
    def is_healthy(self) -> bool:
        """Whether all checks hold, no alarm was raised, and the run did not fail."""
        return not (self.off or self.alarms or self.failure)

    @property
    def likeliest(self) -> list[Diagnosis]:
        """All causes that fit; empty: the cause is unknown."""
        return [diagnosis for diagnosis in self.diagnoses if diagnosis.fits]

    @property
    def cause(self) -> Cause | None:
        """The most likely cause that fits; None: the cause is unknown, or nothing is wrong."""
        return self.likeliest[0].cause if self.likeliest else None

    def __str__(self) -> str:
        return "\n".join(
            [*self._verdict(), *self._way_back(), *self._causes(), *self._alarms(), *self._looked_at()]
        )

    __repr__ = __str__

    def _verdict(self) -> list[str]:
        if not self.steps:
            return [f"{self.run} has no figures yet."]
        failed = [f"{self.run} {self.failure}"] if self.failure else []
        if all(reading.check.is_clue for reading in self.readings):
            return [*failed, f"{self.run}: no check applies to the metrics of its {self.steps} records."]
        if not self.off:
            besides = (
                "but alarms sounded" if self.alarms else "but it failed" if failed else "nothing looks wrong"
            )
            return [*failed, f"{self.run}: every check holds in {self.steps} records, {besides}."]
        begins = self.off[0].step
        return [
            *failed,
            f"{self.run} looks wrong from step {begins} on:",
            *(f"  {reading}" for reading in self.off),
            *(
                f"{name} is your own ({file}): a figure may differ on purpose."
                for name, file in self.own_functions.items()
            ),
        ]

    def _way_back(self) -> list[str]:
        return ["", self.way_back] if self.way_back else []

    def _causes(self) -> list[str]:
        lines = [*self._how_sure()]
        own = "".join(f"{name} in {file}; " for name, file in self.own_functions.items())
        for number, diagnosis in enumerate((self.likeliest or self.diagnoses)[:SHOWN_CAUSES], start=1):
            lines += [
                "",
                f"{number}. {diagnosis.cause.title}",
                f"   {diagnosis.cause.meaning}",
                f"   Look at: {own}{diagnosis.cause.knob}",
            ]
            lines += [f"   + {text}" for text in diagnosis.evidence_for]
            lines += [f"   − {text}" for text in diagnosis.evidence_against]
            lines += [f"   ? It does not explain: {text}" for text in diagnosis.unexplained]
        return lines

    def _how_sure(self) -> list[str]:
        fit = len(self.likeliest)
        if self.is_healthy or not self.steps or fit == 1:
            return []
        if fit:
            return ["", f"{fit} causes fit these figures; the figures alone can't decide between them."]
        if self.diagnoses:
            return [
                "",
                "Unknown cause: no known cause explains all of these figures. The nearest causes:",
            ]
        return ["", "Unknown cause: no known cause breaks these checks."] if self.off else []

    def _alarms(self) -> list[str]:
        if not self.alarms:
            return []
        return ["", "Alarms:"] + [
            f"  step {alarm['step']}: {alarm['title']}: {alarm['meaning']} {alarm['control']}"
            for alarm in self.alarms
        ]

    def _looked_at(self) -> list[str]:
        healthy = [reading for reading in self.readings if not reading.is_off]
        lines = ["", "In its range:", *(f"  {reading}" for reading in healthy)] if healthy else []
        if self.unseen and self.steps:
            lines += ["", "Not visible in this run: " + "; ".join(check.figure for check in self.unseen)]
        return lines


def explain(run) -> Explanation:
    """Explain a run's metrics. run: a RunFolder, or a recording, which is read up to its current position."""
    evidence = Evidence(run)
    readings, unseen = [], []
    for check in CHECKS:
        applies = not check.of or evidence.of(check.of)
        quantity = check.quantity(evidence) if applies else None
        if quantity is not None:
            readings.append(Reading(check, quantity, next(iter(quantity.off()), None)))
        elif applies and not check.is_clue:
            unseen.append(check)
    odd_steps = [reading.step for reading in readings if reading.is_fault]
    return Explanation(
        run=run.name,
        failure=_failure(run),
        steps=len(evidence.records),
        readings=readings,
        diagnoses=diagnosed(readings),
        alarms=_first_of_each(evidence.alarms),
        unseen=unseen,
        metrics=frozenset(evidence.read),
        way_back=way_back(run, [*(alarm["step"] for alarm in evidence.alarms), *odd_steps]),
        own_functions=evidence.own_functions,
    )


def diagnosed(readings: list[Reading]) -> list[Diagnosis]:
    """The causes with evidence for them, the most likely first; none if all checks hold apart from clues."""
    if not any(reading.is_fault for reading in readings):
        return []
    by_name = {reading.name: reading for reading in readings}
    diagnoses = [_weighed(cause, by_name) for cause in CAUSES]
    fitting = (diagnosis for diagnosis in diagnoses if diagnosis is not None)
    return sorted(fitting, key=lambda diagnosis: diagnosis.weight, reverse=True)


def _weighed(cause: Cause, readings: dict[str, Reading]) -> Diagnosis | None:
    """Collect the evidence for and against a cause. None if the run shows none of the cause's main signs."""
    evidence_for, against = [], []
    for group in cause.breaks:
        seen = [readings[name] for name in group if name in readings]
        off = [reading for reading in seen if reading.is_off]
        evidence_for += [str(reading) for reading in off]
        if seen and not off:
            against += [str(reading) for reading in seen]
    if not evidence_for:
        return None
    for name in cause.holds:
        if name in readings:
            (against if readings[name].is_off else evidence_for).append(str(readings[name]))
    known = {*(name for group in cause.breaks for name in group), *cause.holds, *cause.brings}
    unexplained = [
        reading
        for reading in readings.values()
        if reading.is_fault and not reading.check.is_consequence and reading.name not in known
    ]
    return Diagnosis(cause, evidence_for, against, [str(reading) for reading in unexplained])


def _failure(run) -> str:
    if run.status == "lost":
        return "is lost: it ended without a message, or its machine no longer answers"
    return f"failed: {run.info.get('message', '')}" if run.status == "failed" else ""


def _first_of_each(alarms: list[dict]) -> list[dict]:
    first: dict[str, dict] = {}
    for alarm in alarms:
        first.setdefault(alarm["name"], alarm)
    return list(first.values())
