"""What can be said of policies from a few answers: means, gains, shares, win rates and their intervals.

N answers to G prompts. Several answers to one prompt are not independent, so each interval counts prompts: ten answers to each of
three prompts say little more than three answers. `python -m benchmarks.coverage` measures how often each interval holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray

Z = 1.96  # standard deviations that 95 % of a normal distribution lie within
RIDGE = 0.1  # on both coefficients of the regression, so that no step of Newton's method runs away


class Estimate(NamedTuple):
    """A figure, and the interval that holds it in 95 of 100 draws of the prompts. NaN: the data do not identify it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "not identifiable"
        if math.isnan(self.low):
            return f"{self.value:.3g} (interval not identifiable)"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


NOT_IDENTIFIABLE = Estimate(math.nan, math.nan, math.nan)


def mean_interval(values: Sequence[float], prompts: Sequence[int]) -> Estimate:
    """The mean of N values, and its interval over prompts, by Student's t; of a gain: of the N paired differences.

    prompts: which prompt each value belongs to, int [N]. One prompt alone has no interval. The deviation is that of whole prompts
    (Liang and Zeger 1986), with G − 1 degrees of freedom. Each prompt's residual is divided by 1 − 1/G, as in the estimator HC3
    (MacKinnon and White 1985): without this factor, four lengths, whose distribution is skewed, have an interval that holds
    their mean in 91 of 100 draws; with it, in 93. Raises ValueError without any value.
    """
    values, at, count = _by_prompt(values, prompts)
    mean = float(values.mean())
    if count < 2:
        return Estimate(mean, math.nan, math.nan)
    deviation = math.sqrt(_variance_of_mean(values - mean, at, count) * count / (count - 1))
    half = t_quantile(count - 1) * deviation
    return Estimate(mean, mean - half, mean + half)


def share(values: Sequence[float], prompts: Sequence[int]) -> Estimate:
    """The mean of N values from 0 to 1, and its interval over prompts: Wilson's with a continuity correction (Newcombe 1998,
    method 4), for as many values as are independent.

    That number is N over the design effect (Kish 1965), narrowed by t for the few prompts that the effect is measured on (Korn and
    Graubard 1998), and lies between G and N. The effect is measured as if two more prompts were known, one with all values 1 and
    one with all 0: else answers that are all alike would have none. Raises ValueError without any value.
    """
    values, at, count = _by_prompt(values, prompts)
    mean, size = float(values.mean()), _independent(values, at, count)
    middle, width = 2 * size * mean + Z**2, 2 * (size + Z**2)
    below = Z * math.sqrt(Z**2 - 2 - 1 / size + 4 * mean * (size * (1 - mean) + 1)) + 1
    above = Z * math.sqrt(Z**2 + 2 - 1 / size + 4 * mean * (size * (1 - mean) - 1)) + 1
    low = max((middle - below) / width, 0.0) if mean > 0 else 0.0
    high = min((middle + above) / width, 1.0) if mean < 1 else 1.0
    return Estimate(mean, low, high)


def share_gain(gains: Sequence[float], prompts: Sequence[int]) -> Estimate:
    """The mean of N paired differences of shares, each from −1 to 1, and its interval over prompts.

    As the t interval, with two more prompts, of which one gains 1 and one loses 1: so a gain that was seen in no prompt, or in
    every one, has an interval too. Of one answer to each prompt this is Bonett and Price's (2012). Raises ValueError without any
    value.
    """
    gains, at, count = _by_prompt(gains, prompts)
    of_prompts = np.bincount(at, weights=gains) / np.bincount(at)
    more = np.concatenate([of_prompts, [1.0, -1.0]])
    half = t_quantile(count + 1) * more.std() / math.sqrt(len(more))
    middle = float(more.mean())
    return Estimate(float(gains.mean()), max(middle - half, -1.0), min(middle + half, 1.0))


def win_rate(wins: Sequence[float], prompts: Sequence[int]) -> Estimate:
    """The share of N comparisons that were won. wins: 1 for a win, 0.5 for a tie, 0 for a loss."""
    return share(wins, prompts)


def length_controlled_win_rate(
    wins: Sequence[float], length_differences: Sequence[float], prompts: Sequence[int]
) -> Estimate:
    """The share of comparisons that would be won if both answers were of one length.

    A logistic regression of the wins on an intercept and tanh(d / std d), read where d = 0; its interval is of the intercept, by
    whole prompts and Student's t. wins: as in `win_rate`; length_differences: tokens of one's own answer less those of the
    other's, [N]. Not identifiable where all comparisons have one winner, where the length alone tells the winner (a logistic
    regression then has no finite answer: Albert and Anderson 1984), and where one side is always the longer one. Source: Dubois et
    al. 2024 (arXiv:2404.04475), without its term for how hard a prompt is.
    """
    wins, at, count = _by_prompt(wins, prompts)
    differences = np.asarray(length_differences, float)
    if not differences.any():
        return win_rate(wins, prompts)
    if count < 4 or not _is_identified(wins, differences):
        return NOT_IDENTIFIABLE
    features = np.stack([np.ones_like(differences), np.tanh(differences / differences.std())], axis=1)
    coefficients = _logistic_regression(features, wins)
    expected = _sigmoid(features @ coefficients)
    curvature = (features * (expected * (1 - expected))[:, None]).T @ features + RIDGE * np.eye(2)
    inverse = np.linalg.inv(curvature)
    scores = np.zeros((count, 2))
    np.add.at(scores, at, features * (wins - expected)[:, None])
    by_prompt = (inverse @ scores.T @ scores @ inverse)[0, 0] * count / (count - 2)
    half = t_quantile(count - 2) * math.sqrt(max(by_prompt, inverse[0, 0]))
    middle = coefficients[0]
    return Estimate(*(float(_sigmoid(logit)) for logit in (middle, middle - half, middle + half)))


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


@cache
def t_quantile(freedom: int) -> float:
    """How many standard errors 95 % of Student's t distribution lie within, for whole degrees of freedom from 1 on.

    Found by halving on the distribution's closed form (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
    """
    low, high = 1.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return low


def _within(t: float, freedom: int) -> float:
    """The probability that |T| ≤ t."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _by_prompt(values: Sequence[float], prompts: Sequence[int]) -> tuple[ndarray, ndarray, int]:
    """The values, the number of each one's prompt from 0 on, and how many prompts there are."""
    names, at = np.unique(np.asarray(prompts), return_inverse=True)
    if not len(names):
        raise ValueError("there are no answers to compute an interval of")
    return np.asarray(values, float), at, len(names)


def _variance_of_mean(residuals: ndarray, at: ndarray, count: int) -> float:
    """Of the mean of values that hang together within prompts."""
    sums = np.bincount(at, weights=residuals)
    return float(count / (count - 1) * (sums**2).sum() / len(residuals) ** 2)


def _independent(values: ndarray, at: ndarray, count: int) -> float:
    """How many independent values N values of G prompts are worth: from G to N."""
    number = len(values)
    if number == count:
        return number
    size = max(round(number / count), 1)
    values = np.concatenate([values, np.ones(size), np.zeros(size)])
    at = np.concatenate([at, np.full(size, count), np.full(size, count + 1)])
    mean = values.mean()
    of_prompts = _variance_of_mean(values - mean, at, count + 2)
    effect = of_prompts / (mean * (1 - mean) / len(values))
    worth = number / effect * (Z / t_quantile(count + 1)) ** 2
    return min(max(worth, count), number)


def _is_identified(wins: ndarray, differences: ndarray) -> bool:
    """Whether wins and losses overlap in length, on both sides of equal length."""
    won, lost = differences[wins >= 0.5], differences[wins <= 0.5]
    if not len(won) or not len(lost):
        return False
    overlap = won.min() < lost.max() and lost.min() < won.max()
    return bool(overlap and differences.min() <= 0 <= differences.max())


def _logistic_regression(features: ndarray, wins: ndarray) -> ndarray:
    """Coefficients [2] of a regression of wins [N] on features [N, 2], by Newton's method."""
    coefficients = np.zeros(features.shape[1])
    for _ in range(25):
        expected = _sigmoid(features @ coefficients)
        gradient = (wins - expected) @ features - RIDGE * coefficients
        curvature = (features * (expected * (1 - expected))[:, None]).T @ features
        step = np.linalg.solve(curvature + RIDGE * np.eye(len(coefficients)), gradient)
        coefficients += np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-9:
            break
    return coefficients


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
