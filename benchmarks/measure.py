"""The measurements of a benchmark: rounds of work on both sides, their speeds, and whether the work was equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

FIRST_STEP, LATER_STEPS = 1e-4, 1e-3  # allowed relative difference of losses and gradients …
ABOUT_ZERO = 1e-6  # … and absolute difference: GRPO's first loss is a sum of advantages that cancel


@dataclass(frozen=True)
class Round:
    """A timed piece of work."""

    seconds: float
    tokens: int  # real tokens: padding never counts
    losses: tuple[float, ...] | None = ()
    """Of the round's optimiser steps; empty without such steps. None: the side has its own order of samples."""
    grad_norms: tuple[float, ...] | None = ()
    """Of the same steps. The check also compares the norms, because the first loss of some kinds is the same for any
    weights."""
    generated: int = 0  # the drawn tokens among `tokens`

    @property
    def speed(self) -> float:
        """Real tokens a second."""
        return self.tokens / self.seconds


@dataclass
class Side:
    """A contestant: its rounds, and a warm-up round that no figure counts."""

    name: str
    settings: str  # the choices that affect the speed, as the table shows them
    warm_up: Round | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def speeds(self) -> list[float]:
        return [round.speed for round in self.rounds]


@dataclass
class Comparison:
    """Sides that did the same work in interleaved rounds. The first side is Aligner Lab's."""

    name: str
    unit: str
    sides: list[Side]
    aim: float | None  # the target speed, as a multiple of the second side's; None: no target
    rounding: float = 1.0  # factor for FIRST_STEP and LATER_STEPS, for a precision below float32
    sizes: dict[str, int] = field(default_factory=dict)
    """Where they differ from the setting's or from other comparisons'."""

    def check_equal_work(self) -> None:
        """Check that every side read and generated the same number of tokens in each round, and began with the same losses.

        Raises AssertionError with both sides' figures, because sides with unequal work cannot be compared, and if a side lacks
        losses or norms that the other has.
        """
        ours = self.sides[0]
        for side in self.sides[1:]:
            for number, (a, b) in enumerate(
                zip([ours.warm_up, *ours.rounds], [side.warm_up, *side.rounds], strict=True)
            ):
                where = f"{self.name}, round {number}"
                assert a.tokens == b.tokens, (
                    f"{where}: {ours.name} counted {a.tokens} real tokens, {side.name} {b.tokens}"
                )
                assert a.generated == b.generated, (
                    f"{where}: {ours.name} generated {a.generated} tokens, {side.name} {b.generated}"
                )
            for what, name in (("loss", "losses"), ("gradient's norm", "grad_norms")):
                self._check_equal(what, side, getattr(ours.warm_up, name), getattr(side.warm_up, name))

    def _check_equal(
        self, what: str, side: Side, ours: tuple[float, ...], theirs: tuple[float, ...] | None
    ) -> None:
        """Compare the warm-up's steps."""
        if theirs is None:
            return
        name = self.sides[0].name
        assert len(ours) == len(theirs), (
            f"{self.name}: {name} has the {what} of {len(ours)} steps, {side.name} of {len(theirs)}"
        )
        for step, (a, b, tolerance) in enumerate(zip(ours, theirs, self._tolerances(ours)), 1):
            assert math.isclose(a, b, rel_tol=tolerance, abs_tol=ABOUT_ZERO), (
                f"{self.name}, step {step}: the {what} of {name} is {a:.6f}, that of {side.name} {b:.6f}"
            )

    def _tolerances(self, figures: tuple[float, ...]) -> list[float]:
        """The tolerance of each step. The first step uses equal weights; in later steps, Adam amplifies the rounding of the first."""
        return [self.rounding * (LATER_STEPS if step else FIRST_STEP) for step in range(len(figures))]

    def equal_work(self, side: Side) -> dict:
        """The quantities of a side that `check_equal_work` compares. For losses and norms: the tolerance of each step."""
        compared = {"tokens": "equal in every round"}
        if side.warm_up.generated:
            compared["generated"] = "equal in every round"
        for name in ("losses", "grad_norms"):
            if figures := getattr(side.warm_up, name):
                compared[name] = self._tolerances(figures)
        return compared

    def ratio(self, side: Side) -> float:
        """How many times as fast Aligner Lab is as this side: the median over rounds measured next to each other."""
        return median(a.speed / b.speed for a, b in zip(self.sides[0].rounds, side.rounds, strict=True))

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "unit": self.unit,
            "aim": self.aim,
            "sizes": self.sizes,
            "sides": [
                {
                    "name": side.name,
                    "settings": side.settings,
                    "median": median(side.speeds),
                    "low": min(side.speeds),
                    "high": max(side.speeds),
                    "speeds": side.speeds,
                    "tokens_a_round": side.rounds[0].tokens,
                    "generated_a_round": side.rounds[0].generated,
                    "first_loss": _first(side.warm_up.losses),
                    "first_grad_norm": _first(side.warm_up.grad_norms),
                    "equal_work": self.equal_work(side) if side is not self.sides[0] else None,
                    "ours_is_times_as_fast": self.ratio(side),
                }
                for side in self.sides
            ],
        }


def _first(figures: tuple[float, ...] | None) -> float | None:
    return figures[0] if figures else None


def _spread(seconds: list[float]) -> dict:
    return {"median": median(seconds), "low": min(seconds), "high": max(seconds), "seconds": seconds}


@dataclass
class StepCost:
    """PPO: seconds of a whole step, and of each of its bare passes, measured in turn."""

    steps: list[float]
    passes: list[dict[str, float]]  # for each round: seconds by pass
    aim: float = 1.25

    @property
    def bare(self) -> list[float]:
        return [sum(seconds.values()) for seconds in self.passes]

    @property
    def ratio(self) -> float:
        """The step's time divided by the time of its bare passes: the median over rounds."""
        return median(step / bare for step, bare in zip(self.steps, self.bare, strict=True))

    def as_dict(self) -> dict:
        return {
            "name": "ppo",
            "unit": "seconds",
            "aim": self.aim,
            "ratio": self.ratio,
            "step": _spread(self.steps),
            "bare": _spread(self.bare),
            "passes": {name: _spread([seconds[name] for seconds in self.passes]) for name in self.passes[0]},
        }


@dataclass
class WaitTimes:
    """Waiting times of a user, each measured a few times. The best time is compared with the aim, because the machine may be
    busy."""

    name: str
    seconds: dict[str, list[float]]
    aims: dict[str, float]

    def as_dict(self) -> dict:
        rows = {
            what: {"best": min(runs), "aim": self.aims[what], "seconds": runs}
            for what, runs in self.seconds.items()
        }
        return {"name": self.name, "unit": "seconds", "clock": "wall", "waits": rows}


@dataclass
class RemoteCriticBench:
    """PPO as two jobs: seconds of a step in either layout, and the cost of sending requests to the critic."""

    in_process: list[float]  # one number per step
    remote_critic: list[float]
    waits: list[float]  # timers/critic_wait plus critic_train_wait of the steps of remote_critic
    round_trips: dict[str, list[float]]  # by endpoint, without the critic's own work
    calls: dict[str, int]  # of each endpoint in a step
    aim: float = 1.3
    transport_aim: float = 0.02

    @property
    def ratio(self) -> float:
        return median(self.remote_critic) / median(self.in_process)

    @property
    def transport_share(self) -> float:
        """The share of a step for the transport of requests and answers, if no transport overlapped with work."""
        carried = sum(median(self.round_trips[name]) * count for name, count in self.calls.items())
        return carried / median(self.remote_critic)

    def as_dict(self) -> dict:
        return {
            "name": "remote-critic",
            "unit": "seconds",
            "clock": "wall",
            "aim": self.aim,
            "ratio": self.ratio,
            "in_process": self.in_process,
            "remote_critic": self.remote_critic,
            "critic_wait": self.waits,
            "round_trips": {name: _spread(seconds) for name, seconds in self.round_trips.items()},
            "calls": self.calls,
            "transport_share": self.transport_share,
            "transport_aim": self.transport_aim,
        }
