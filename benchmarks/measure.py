"""What a benchmark counts: rounds of work on both sides, their speeds, and whether the work was equal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

FIRST_STEP, LATER_STEPS = 1e-4, 1e-3  # how far losses and gradients may be apart, relative
ABOUT_ZERO = 1e-6  # … and absolute: GRPO's first loss is a sum of advantages that cancel


@dataclass(frozen=True)
class Round:
    """One timed piece of work."""

    seconds: float
    tokens: int  # real ones: padding is work, and never counted
    losses: tuple[
        float, ...
    ] = ()  # of its optimiser steps; empty where the order of samples is the side's own
    grad_norms: tuple[float, ...] = ()  # the same; where a first loss is the same for any weights, they tell
    generated: int = 0  # tokens that were drawn, of `tokens`

    @property
    def speed(self) -> float:
        """Real tokens a second."""
        return self.tokens / self.seconds


@dataclass
class Side:
    """One contestant: its rounds, the first of them a warm-up that no figure counts."""

    name: str
    settings: str  # the choices that matter for its speed, as the table shows them
    warm_up: Round | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def speeds(self) -> list[float]:
        return [round.speed for round in self.rounds]


@dataclass
class Comparison:
    """Sides that did the same work in interleaved rounds; the first is Aligner Lab's."""

    name: str
    unit: str
    sides: list[Side]
    aim: float | None  # the speed to reach, as a multiple of the second side's, where there is one
    rounding: float = 1.0  # times FIRST_STEP and LATER_STEPS, for a precision below float32

    def check_equal_work(self) -> None:
        """Every side counted the same tokens, read and generated, in each round, and began with the same losses.

        Raises AssertionError with both sides' figures: unequal work is no comparison.
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
            self._check_equal("loss", side, ours.warm_up.losses, side.warm_up.losses)
            self._check_equal("gradient's norm", side, ours.warm_up.grad_norms, side.warm_up.grad_norms)

    def _check_equal(self, what: str, side: Side, ours: tuple[float, ...], theirs: tuple[float, ...]) -> None:
        """Of the warm-up's steps: the first is of equal weights, and Adam turns its rounding into more."""
        for step, (a, b) in enumerate(zip(ours, theirs), 1):
            tolerance = self.rounding * (FIRST_STEP if step == 1 else LATER_STEPS)
            assert math.isclose(a, b, rel_tol=tolerance, abs_tol=ABOUT_ZERO), (
                f"{self.name}, step {step}: the {what} of {self.sides[0].name} is {a:.6f}, that of {side.name} {b:.6f}"
            )

    def ratio(self, side: Side) -> float:
        """How many times as fast as this side ours is: the median over rounds measured next to each other."""
        return median(a.speed / b.speed for a, b in zip(self.sides[0].rounds, side.rounds, strict=True))

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "unit": self.unit,
            "aim": self.aim,
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
                    "first_loss": _first(side.warm_up and side.warm_up.losses),
                    "first_grad_norm": _first(side.warm_up and side.warm_up.grad_norms),
                    "ours_is_times_as_fast": self.ratio(side),
                }
                for side in self.sides
            ],
        }


def _first(figures: tuple[float, ...] | None) -> float | None:
    return figures[0] if figures else None


@dataclass
class StepCost:
    """PPO: seconds of a whole step, and of each of its passes done barely, measured in turn."""

    steps: list[float]
    passes: list[dict[str, float]]  # a round each: seconds by pass
    aim: float = 1.25

    @property
    def bare(self) -> list[float]:
        return [sum(seconds.values()) for seconds in self.passes]

    @property
    def ratio(self) -> float:
        """The step's time over its bare passes': the median over rounds."""
        return median(step / bare for step, bare in zip(self.steps, self.bare, strict=True))

    def as_dict(self) -> dict:
        return {
            "name": "ppo",
            "unit": "seconds",
            "aim": self.aim,
            "ratio": self.ratio,
            "step": {"median": median(self.steps), "low": min(self.steps), "high": max(self.steps)},
            "bare": {"median": median(self.bare), "low": min(self.bare), "high": max(self.bare)},
            "passes": {name: median(seconds[name] for seconds in self.passes) for name in self.passes[0]},
        }


@dataclass
class WaitTimes:
    """What somebody waits for, a few times each; the best is compared with its aim, for the machine may be busy."""

    name: str
    seconds: dict[str, list[float]]
    aims: dict[str, float]

    def as_dict(self) -> dict:
        rows = {
            what: {"best": min(runs), "aim": self.aims[what], "seconds": runs}
            for what, runs in self.seconds.items()
        }
        return {"name": self.name, "unit": "seconds", "waits": rows}


@dataclass
class RemoteCriticBench:
    """PPO as two jobs: seconds of a step in either layout, and what carrying requests to the critic costs."""

    in_process: list[float]  # a step each
    remote_critic: list[float]
    waits: list[float]  # timers/critic_wait and critic_train_wait of the steps of remote_critic
    round_trips: dict[str, list[float]]  # by endpoint, without the critic's own work
    calls: dict[str, int]  # of each endpoint in one step
    aim: float = 1.3
    transport_aim: float = 0.02

    @property
    def ratio(self) -> float:
        return median(self.remote_critic) / median(self.in_process)

    @property
    def transport_share(self) -> float:
        """The part of a step that requests and answers are on their way, if nothing overlapped."""
        carried = sum(median(self.round_trips[name]) * count for name, count in self.calls.items())
        return carried / median(self.remote_critic)

    def as_dict(self) -> dict:
        return {
            "name": "remote-critic",
            "unit": "seconds",
            "aim": self.aim,
            "ratio": self.ratio,
            "in_process": self.in_process,
            "remote_critic": self.remote_critic,
            "critic_wait": self.waits,
            "round_trips": {name: median(seconds) for name, seconds in self.round_trips.items()},
            "calls": self.calls,
            "transport_share": self.transport_share,
            "transport_aim": self.transport_aim,
        }
