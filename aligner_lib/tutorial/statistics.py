"""What can be said of policies from a few answers: means, win rates and their intervals.

N answers, R resamples. Several answers to one prompt are not independent: whole prompts are drawn again (the cluster
bootstrap), so that ten answers to each of three prompts count as three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

RESAMPLES = 2000
Z = 1.96  # standard deviations that 95 % of a normal distribution lie within
RIDGE = 0.1  # on both coefficients of the regression, so that a policy that always wins has a finite one


class Estimate(NamedTuple):
    """A figure, and the interval that holds it in 95 of 100 draws of the prompts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def mean_interval(values: Sequence[float], prompts: Sequence[int], seed: int = 0) -> Estimate:
    """The mean of N values, and its interval over prompts.

    prompts: which prompt each value belongs to, int [N]. Source: Field and Welsh 2007 (bootstrapping clustered data).
    Raises ValueError without any value.
    """
    values, weights = np.asarray(values, float), _resampled(prompts, seed)
    return _estimate(values.mean(), (weights @ values) / weights.sum(axis=1))


def share(values: Sequence[float], prompts: Sequence[int], seed: int = 0) -> Estimate:
    """The mean of N values from 0 to 1, and its interval over prompts.

    Where all are 0, or all are 1, every resample is so too, and says nothing: the interval is Wilson's for as many
    values as there are prompts. Source: Wilson 1927.
    """
    estimate, number = mean_interval(values, prompts, seed), len(set(prompts))
    if estimate.value not in (0.0, 1.0):
        return estimate
    least = number / (number + Z**2)  # of a success in each
    return Estimate(1.0, least, 1.0) if estimate.value else Estimate(0.0, 0.0, 1.0 - least)


def win_rate(wins: Sequence[float], prompts: Sequence[int], seed: int = 0) -> Estimate:
    """The share of N comparisons that were won. wins: 1 for a win, 0.5 for a tie, 0 for a loss."""
    return share(wins, prompts, seed)


def length_controlled_win_rate(
    wins: Sequence[float], length_differences: Sequence[float], prompts: Sequence[int], seed: int = 0
) -> Estimate:
    """The share of comparisons that would be won if both answers were of one length.

    A logistic regression of the wins on an intercept and tanh(d / std d), read where d = 0. wins: as in `win_rate`;
    length_differences: tokens of one's own answer less those of the other's, [N].
    Source: Dubois et al. 2024 (arXiv:2404.04475), without its term for how hard a prompt is.
    """
    wins, differences = np.asarray(wins, float), np.asarray(length_differences, float)
    spread = differences.std() or 1.0
    features = np.stack([np.ones_like(differences), np.tanh(differences / spread)], axis=1)
    weights = np.concatenate([np.ones((1, len(wins))), _resampled(prompts, seed)])
    intercepts = _logistic_regression(features, wins, weights)[:, 0]
    rates = _sigmoid(intercepts)
    return _estimate(rates[0], rates[1:])


def gain_in_parts(
    rewards: Sequence[Sequence[float]], ended: Sequence[Sequence[bool]], right: Sequence[Sequence[bool]]
) -> tuple[float, float, float]:
    """What a gain in mean reward is made of: that more answers end, that more of those are right, and the rest.

    Each argument has the N values before and the N after; right: what a program says. The first part is the change of the
    share that ends, times what ending was worth before; the second the change of the share that is right among those
    that end, times what being right was worth before, times the share that ends after. A worth that nothing was seen of
    is 0. The three add up to the gain.
    """
    paid, ends, rights = np.asarray(rewards, float), np.asarray(ended, bool), np.asarray(right, bool)

    def worth(have: ndarray, lack: ndarray) -> float:
        return paid[0][have].mean() - paid[0][lack].mean() if have.any() and lack.any() else 0.0

    share_ended = ends.mean(axis=1)
    share_right = [(end & good).sum() / max(end.sum(), 1) for end, good in zip(ends, rights)]
    by_ending = (share_ended[1] - share_ended[0]) * worth(ends[0], ~ends[0])
    by_gold = (
        share_ended[1] * (share_right[1] - share_right[0]) * worth(ends[0] & rights[0], ends[0] & ~rights[0])
    )
    gain = paid[1].mean() - paid[0].mean()
    return float(by_ending), float(by_gold), float(gain - by_ending - by_gold)


def distinct_n(texts: Sequence[str], n: int) -> float:
    """The share of different ones among all runs of n words: low where a policy repeats itself. 0 without any.

    It falls with the amount of text: compare equally many answers. Source: Li et al. 2016 (arXiv:1510.03055).
    """
    runs = [
        tuple(words[i : i + n])
        for words in (text.lower().split() for text in texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(runs)) / len(runs) if runs else 0.0


def compare(own: Sequence[float], others: Sequence[float]) -> list[float]:
    """For each pair of scores 1 where one's own is higher, 0.5 where they are equal, 0 else."""
    return [(a > b) + 0.5 * (a == b) for a, b in zip(own, others, strict=True)]


def _resampled(prompts: Sequence[int], seed: int) -> ndarray:
    """How often each answer counts in each resample: float64 [R, N]."""
    names, at = np.unique(np.asarray(prompts), return_inverse=True)
    if not len(names):
        raise ValueError("there are no answers to compute an interval of")
    counts = np.random.default_rng(seed).multinomial(len(names), [1 / len(names)] * len(names), RESAMPLES)
    return counts[:, at].astype(float)


def _estimate(value: float, resamples: ndarray) -> Estimate:
    low, high = np.quantile(resamples, [0.025, 0.975])
    return Estimate(float(value), float(low), float(high))


def _logistic_regression(features: ndarray, wins: ndarray, weights: ndarray) -> ndarray:
    """Coefficients [R, 2] of R regressions of wins [N] on features [N, 2] with weights [R, N], by Newton's method."""
    coefficients = np.zeros((len(weights), features.shape[1]))
    for _ in range(25):
        expected = _sigmoid(coefficients @ features.T)  # [R, N]
        gradient = (weights * (wins - expected)) @ features - RIDGE * coefficients
        curvature = np.einsum("rn,ni,nj->rij", weights * expected * (1 - expected), features, features)
        curvature += RIDGE * np.eye(features.shape[1])
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        coefficients += np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-9:
            break
    return coefficients


def _sigmoid(x: ndarray) -> ndarray:
    return 1 / (1 + np.exp(-x))
