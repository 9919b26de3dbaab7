"""Explain a run: the first step that looks wrong, what it likely means, and where to look.

    from aligner_lib.run_folder.explain import explain
    explain(lab.run("ppo"))

It reads metrics, settings and alarms of a run folder or a recording, of any kind of job. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aligner_lib.run_folder.explain import checks_of_rollouts, checks_of_signs  # noqa: F401, they join CHECKS
from aligner_lib.run_folder.explain.causes import CAUSES, Cause
from aligner_lib.run_folder.explain.checks import CHECKS, Check, Quantity
from aligner_lib.run_folder.explain.evidence import Evidence
from aligner_lib.run_folder.set_aside import way_back

SHOWN_CAUSES = 3


@dataclass(frozen=True)
class Reading:
    """What a check found in a run. step: the first that is out of the healthy range; None: none is."""

    check: Check
    quantity: Quantity
    step: int | None

    @property
    def is_off(self) -> bool:
        return self.step is not None

    @property
    def name(self) -> str:
        return self.check.name

    def __str__(self) -> str:
        values, healthy = self.quantity.values, self.quantity.healthy
        if not self.is_off:
            return f"{self.check.figure}: {_span(values)} (healthy: {healthy})"
        last = next(reversed(self.quantity.off()))
        more = "" if last == self.step else f", and {values[last]:.3g} at step {last}"
        return f"{self.check.figure} is {values[self.step]:.3g} at step {self.step}{more}; healthy: {healthy}, for {self.check.why}"


@dataclass(frozen=True)
class Diagnosis:
    """A cause with the evidence for it and against it."""

    cause: Cause
    evidence_for: list[str]
    evidence_against: list[str]
    unexplained: list[str] = field(
        default_factory=list
    )  # figures out of their ranges that it would leave alone

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it, and it accounts for all that is out of its range."""
        return not self.evidence_against and not self.unexplained

    @property
    def weight(self) -> tuple[int, int, int]:
        """To rank by: what speaks against a cause counts first, then what it leaves unexplained."""
        return (-len(self.evidence_against), -len(self.unexplained), len(self.evidence_for))


@dataclass(frozen=True)
class Explanation:
    """What a run's figures say. `print` it, or let a notebook show it."""

    run: str
    failure: str  # the message of a run that failed
    steps: int  # records that were looked at
    readings: list[Reading]
    diagnoses: list[Diagnosis]  # the likeliest first
    alarms: list[dict] = field(default_factory=list)  # that the run raised
    unseen: list[Check] = field(default_factory=list)  # checks that its figures and settings leave open
    metrics: frozenset[str] = frozenset()  # that the checks read
    way_back: str = ""  # how to undo the change of settings before the failure, alarm or first odd figure

    @property
    def off(self) -> list[Reading]:
        """What looks wrong, the earliest first; clues are no faults by themselves."""
        found = [one for one in self.readings if one.is_off and not one.check.is_clue]
        return sorted(found, key=lambda one: one.step)

    @property
    def is_healthy(self) -> bool:
        """Whether neither a check nor an alarm says otherwise, and the run did not fail."""
        return not (self.off or self.alarms or self.failure)

    @property
    def likeliest(self) -> list[Diagnosis]:
        """All causes that fit; none: the cause is unknown."""
        return [one for one in self.diagnoses if one.fits]

    @property
    def cause(self) -> Cause | None:
        """The first that fits; None: the cause is unknown, or nothing is wrong."""
        return self.likeliest[0].cause if self.likeliest else None

    def __str__(self) -> str:
        return "\n".join(
            [*self._verdict(), *self._way_back(), *self._causes(), *self._alarms(), *self._looked_at()]
        )

    __repr__ = __str__

    def _verdict(self) -> list[str]:
        if not self.steps:
            return [f"{self.run} has no figures yet."]
        failed = [f"{self.run} failed: {self.failure}"] if self.failure else []
        if not self.off:
            besides = (
                "but alarms sounded" if self.alarms else "but it failed" if failed else "nothing looks wrong"
            )
            return [*failed, f"{self.run}: every check holds in {self.steps} records, {besides}."]
        begins = self.off[0].step
        return [*failed, f"{self.run} looks wrong from step {begins} on:", *(f"  {one}" for one in self.off)]

    def _way_back(self) -> list[str]:
        return ["", self.way_back] if self.way_back else []

    def _causes(self) -> list[str]:
        lines = [*self._how_sure()]
        for number, found in enumerate((self.likeliest or self.diagnoses)[:SHOWN_CAUSES], start=1):
            lines += [
                "",
                f"{number}. {found.cause.title}",
                f"   {found.cause.meaning}",
                f"   Look at: {found.cause.knob}",
            ]
            lines += [f"   + {text}" for text in found.evidence_for]
            lines += [f"   − {text}" for text in found.evidence_against]
            lines += [f"   ? It does not explain: {text}" for text in found.unexplained]
        return lines

    def _how_sure(self) -> list[str]:
        fit = len(self.likeliest)
        if self.is_healthy or not self.steps or fit == 1:
            return []
        if fit:
            return ["", f"{fit} causes fit these figures; the figures alone do not decide between them."]
        if self.diagnoses:
            return [
                "",
                "Unknown cause: none of the known ones accounts for all of these figures. The nearest:",
            ]
        return ["", "Unknown cause: no cause that is known here breaks these checks."]

    def _alarms(self) -> list[str]:
        if not self.alarms:
            return []
        return ["", "Alarms:"] + [
            f"  step {one['step']}: {one['title']}: {one['meaning']} {one['control']}" for one in self.alarms
        ]

    def _looked_at(self) -> list[str]:
        whole = [one for one in self.readings if not one.is_off]
        lines = ["", "In its range:", *(f"  {one}" for one in whole)] if whole else []
        if self.unseen and self.steps:
            lines += ["", "Not to be seen in this run: " + "; ".join(one.figure for one in self.unseen)]
        return lines


def explain(run) -> Explanation:
    """What a run's figures say. run: a RunFolder, or a recording, as far as it has played."""
    evidence = Evidence(run)
    readings, unseen = [], []
    for check in CHECKS:
        concerned = not check.of or evidence.of(check.of)
        quantity = check.quantity(evidence) if concerned else None
        if quantity is not None:
            readings.append(Reading(check, quantity, next(iter(quantity.off()), None)))
        elif concerned and not check.is_clue:
            unseen.append(check)
    info, alarms = run.info, _first_of_each(evidence.alarms)
    odd_steps = [reading.step for reading in readings if reading.is_off and not reading.check.is_clue]
    return Explanation(
        run=run.name,
        failure=info.get("message", "") if info.get("status") == "failed" else "",
        steps=len(evidence.records),
        readings=readings,
        diagnoses=diagnosed(readings),
        alarms=alarms,
        unseen=unseen,
        metrics=frozenset(evidence.read),
        way_back=way_back(run, [*(alarm["step"] for alarm in evidence.alarms), *odd_steps]),
    )


def diagnosed(readings: list[Reading]) -> list[Diagnosis]:
    """The causes that something speaks for, the likeliest first."""
    by_name = {one.name: one for one in readings}
    found = [_weighed(cause, by_name) for cause in CAUSES]
    return sorted((one for one in found if one is not None), key=lambda one: one.weight, reverse=True)


def _weighed(cause: Cause, readings: dict[str, Reading]) -> Diagnosis | None:
    """What speaks for a cause and against it; None where none of its main signs is there."""
    speaks_for, against = [], []
    for group in cause.breaks:
        seen = [readings[name] for name in group if name in readings]
        off = [one for one in seen if one.is_off]
        speaks_for += [str(one) for one in off]
        if seen and not off:
            against += [str(one) for one in seen]
    if not speaks_for:
        return None
    for name in cause.holds:
        if name in readings:
            (against if readings[name].is_off else speaks_for).append(str(readings[name]))
    known = {*(name for group in cause.breaks for name in group), *cause.holds, *cause.brings}
    open_ones = [
        one for one in readings.values() if one.is_off and not one.check.is_clue and one.name not in known
    ]
    return Diagnosis(cause, speaks_for, against, [str(one) for one in open_ones])


def _first_of_each(alarms: list[dict]) -> list[dict]:
    return list({alarm["name"]: alarm for alarm in reversed(alarms)}.values())[::-1]


def _span(values: dict[int, float]) -> str:
    low, high = f"{min(values.values()):.4g}", f"{max(values.values()):.4g}"
    return low if low == high else f"{low} to {high}"
