"""`python -m benchmarks.coverage`: how often an interval of 95 % contains the truth, by simulation.

Each row draws data like a policy's answers, whose true figure is known, and counts the intervals that contain the truth
(aligner_lib.tutorial.comparison.statistics). n is the number of prompts. Duration: a minute on one core.

    --repetitions 2000    simulated evaluations for each figure; the standard error of a figure is then 0.5 points
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from statistics import NormalDist

import numpy as np
from numpy.random import Generator

from aligner_lib.tutorial.comparison.statistics import (
    Estimate,
    area_under_curve,
    cohens_kappa,
    length_controlled_win_rate,
    mean_interval,
    share,
    share_gain,
)
from benchmarks.options import documented_parser

SIZES = (4, 8, 32, 128)
SEED = 0
Draw = Callable[[Generator, int], tuple[Estimate, float]]  # number of prompts n → the estimate, and the truth


def rewards(rng: Generator, n: int) -> tuple[Estimate, float]:
    """Rewards of a reward model, normal, one answer each."""
    return mean_interval(rng.normal(0.3, 1.0, n), range(n)), 0.3


def rewards_of_two(rng: Generator, n: int) -> tuple[Estimate, float]:
    """Two answers a prompt, which share half of the variance."""
    values = rng.normal(0, 1, n).repeat(2) + rng.normal(0.3, 1, 2 * n)
    return mean_interval(values, np.arange(n).repeat(2)), 0.3


def lengths(rng: Generator, n: int) -> tuple[Estimate, float]:
    """Tokens of answers, geometric, cut off at 64."""
    high = 64
    truth = (1 - (1 - 1 / 40) ** high) * 40
    return mean_interval(np.minimum(rng.geometric(1 / 40, n), high), range(n)), truth


def gains(rng: Generator, n: int) -> tuple[Estimate, float]:
    """Differences of two policies' rewards on the same prompts; the truth is 0.2."""
    common = rng.normal(0, 1, n)
    return mean_interval((common + rng.normal(0.2, 0.5, n)) - (common + rng.normal(0, 0.5, n)), range(n)), 0.2


def share_of(truth: float, answers: int = 1) -> Draw:
    """Right and wrong answers. With several answers a prompt, the prompt's own share varies around the truth."""

    def draw(rng: Generator, n: int) -> tuple[Estimate, float]:
        of_prompts = rng.beta(2 * truth, 2 * (1 - truth), n) if answers > 1 else np.full(n, truth)
        values = (rng.random((n, answers)) < of_prompts[:, None]).astype(float)
        return share(values.ravel(), np.arange(n).repeat(answers)), truth

    draw.__doc__ = f"A share of {truth:g}, {answers} {'answer' if answers == 1 else 'answers'} a prompt."
    return draw


def share_gain_of(before: float, after: float) -> Draw:
    """Right answers before and after training, for the same prompts."""

    def draw(rng: Generator, n: int) -> tuple[Estimate, float]:
        hard = rng.random(n)
        noise = rng.random((2, n)) < 0.3
        own = rng.random((2, n))
        first, last = (np.where(noise[i], own[i], hard) < p for i, p in enumerate((before, after)))
        return share_gain(last.astype(float) - first, range(n)), after - before

    draw.__doc__ = f"Paired gain of a share, {before:g} to {after:g}."
    return draw


def equal_length(intercept: float) -> Draw:
    """Wins that depend on the length, with a known rate at equal length."""

    def draw(rng: Generator, n: int) -> tuple[Estimate, float]:
        differences = rng.normal(5, 15, n)
        logits = intercept + 1.0 * np.tanh(differences / max(differences.std(), 1e-9))
        wins = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)
        return length_controlled_win_rate(wins, differences, range(n)), 1 / (1 + np.exp(-intercept))

    draw.__doc__ = f"Win rate at equal length, {1 / (1 + np.exp(-intercept)):.2g}."
    return draw


def area_of(truth: float) -> Draw:
    """Normal scores of good and bad answers, half of each, that overlap."""
    distance = 2**0.5 * NormalDist().inv_cdf(truth)

    def draw(rng: Generator, n: int) -> tuple[Estimate, float]:
        labels = rng.random(n) < 0.5
        return area_under_curve(rng.normal(distance * labels, 1), labels, range(n)), truth

    draw.__doc__ = f"Area under the curve, {truth:g}."
    return draw


def kappa_of(truth: float, yes: float = 0.5) -> Draw:
    """A judge that knows the label with the probability `truth`, and else says yes by chance. yes: the share of yes."""

    def draw(rng: Generator, n: int) -> tuple[Estimate, float]:
        labels, chance = rng.random((2, n)) < yes
        return cohens_kappa(np.where(rng.random(n) < truth, labels, chance), labels, range(n)), truth

    draw.__doc__ = f"Cohen's kappa, {truth:g}, {yes:.0%} yes."
    return draw


ROWS: tuple[Draw, ...] = (
    rewards,
    rewards_of_two,
    lengths,
    gains,
    share_of(0.5),
    share_of(0.25),
    share_of(0.9),
    share_of(0.25, answers=4),
    share_of(0.9, answers=4),
    share_gain_of(0.25, 0.35),
    share_gain_of(0.25, 0.6),
    equal_length(0.0),
    equal_length(1.0),
    area_of(0.6),
    area_of(0.92),
    kappa_of(0.6),
    kappa_of(0.92),
    kappa_of(0.9, yes=0.1),
)


def coverage(draw: Draw, n: int, repetitions: int) -> tuple[float, float]:
    """The share of identified intervals that contain the truth, and the share of draws with an identified interval."""
    rng, held, identified = np.random.default_rng([SEED, n]), 0, 0
    for _ in range(repetitions):
        estimate, truth = draw(rng, n)
        if not isnan(estimate.low):
            identified += 1
            held += estimate.low - 1e-12 <= truth <= estimate.high + 1e-12
    return (held / identified if identified else float("nan")), identified / repetitions


def table(repetitions: int) -> str:
    """The results in Markdown. A number in brackets is the share of draws in which the figure is identifiable, when the share
    is below 1."""
    rows = [f"| interval of | {' | '.join(f'n = {n}' for n in SIZES)} |", "| --- |" + " --- |" * len(SIZES)]
    for draw in ROWS:
        cells = []
        for n in SIZES:
            held, identified = coverage(draw, n, repetitions)
            cells.append(f"{held:.3f}" + (f" ({identified:.2f})" if identified < 1 else ""))
        rows.append(f"| {draw.__doc__.splitlines()[0].rstrip('.')} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """See the module."""
    parser = documented_parser("coverage", __doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    print(table(parser.parse_args().repetitions))


if __name__ == "__main__":
    main()
