"""Estimates from a few answers of a policy, with 95 % confidence intervals: means, gains, shares and win rates.

N answers to G prompts. Several answers to the same prompt are not independent. The intervals therefore count prompts: ten
answers to each of three prompts contain little more information than three answers. `python -m benchmarks.coverage` measures
how often each interval covers the true value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray

Z = 1.96  # 95 % of a normal distribution lie within Z standard deviations of the mean
RIDGE = 0.1  # L2 regularisation of both regression coefficients, so that Newton's method does not diverge


class Estimate(NamedTuple):
    """A value with its 95 % interval, which covers the true value in 95 of 100 draws of the prompts.

    NaN: the data do not identify the value or the interval.
    """

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
    """The mean of N values with Student's t interval over prompts. For a gain, the values are the N paired differences.

    prompts: the prompt of each value, int [N]. A single prompt has no interval. The standard error is clustered by prompt
    (Liang and Zeger 1986), with G − 1 degrees of freedom. Each prompt's residual is divided by 1 − 1/G, as in the estimator HC3
    (MacKinnon and White 1985). The division matters for few prompts and a skewed distribution: for the lengths of four
    answers, the interval covers the mean in 93 of 100 draws, and without the division in 91. Raises ValueError without values.
    """
    values, at, count = _by_prompt(values, prompts)
    mean = float(values.mean())
    if count < 2:
        return Estimate(mean, math.nan, math.nan)
    deviation = math.sqrt(_variance_of_mean(values - mean, at, count) * count / (count - 1))
    half = t_quantile(count - 1) * deviation
    return Estimate(mean, mean - half, mean + half)


def share(values: Sequence[float], prompts: Sequence[int]) -> Estimate:
    """The mean of N values from 0 to 1, with Wilson's interval over prompts.

    Wilson's interval with continuity correction (Newcombe 1998, method 4) is computed for the effective number of independent
    values. The effective number is N divided by the design effect (Kish 1965) and lies between G and N. A factor from Student's
    t lowers the number, because few prompts measure the design effect (Korn and Graubard 1998). Two artificial prompts, the
    first with all values 1 and the second with all values 0, are added for the design effect: without them, equal answers would
    have no variance. Raises ValueError without values.
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
    """The mean of N paired differences of shares, each from −1 to 1, with an interval over prompts.

    Student's t interval after the addition of two artificial prompts of average size, with the gains 1 and −1. The interval
    therefore has a positive width even if no prompt, or every prompt, shows a gain. The value and the interval weigh a prompt by
    its number of answers. With a single answer to each prompt, the method is that of Bonett and Price (2012). Raises ValueError
    without values.
    """
    gains, at, count = _by_prompt(gains, prompts)
    size = len(gains) / count
    weights = np.append(np.bincount(at) / size, [1.0, 1.0])
    sums = np.append(np.bincount(at, weights=gains) / size, [1.0, -1.0])
    middle = float(sums.mean())
    deviation = math.sqrt(np.square(sums - weights * middle).mean())
    half = t_quantile(count + 1) * deviation / math.sqrt(len(sums))
    return Estimate(float(gains.mean()), max(middle - half, -1.0), min(middle + half, 1.0))


def win_rate(wins: Sequence[float], prompts: Sequence[int]) -> Estimate:
    """The share of N comparisons that a policy wins. wins: 1 for a win, 0.5 for a tie, 0 for a loss."""
    return share(wins, prompts)


def length_controlled_win_rate(
    wins: Sequence[float], length_differences: Sequence[float], prompts: Sequence[int]
) -> Estimate:
    """The win rate that is expected if both answers of a comparison have equal length.

    A logistic regression predicts the wins from an intercept and tanh(d / std d), where d is the length difference. The
    estimate is the prediction at d = 0. The interval comes from the intercept's standard error, clustered by prompt, and
    Student's t. wins: as in `win_rate`. length_differences: tokens of the policy's own answer minus tokens of the other answer,
    [N].
    Not identifiable with fewer than four prompts, if the same policy wins all comparisons, if the length alone determines the
    winner (a logistic regression then has no finite solution: Albert and Anderson 1984), and if the same policy always has the
    longer answer.
    Source: Dubois et al. 2024 (arXiv:2404.04475), without the term for the difficulty of a prompt.
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
    """A gain in mean reward, split into three parts: more answers end, more of the ended answers are right, and the rest.

    Each argument has the N values before and the N values after training; right: the judgement of a program.
    First part: the change of the share of ended answers, times the difference in mean reward between ended and other answers
    before training. Second part: the change of the share of right answers among the ended answers, times the difference in mean
    reward between right and wrong ended answers before training, times the share of ended answers after training. A difference
    is 0 if one of its two groups is empty. The three parts add up to the gain.
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


def cohens_kappa(verdicts: Sequence[bool], labels: Sequence[bool], prompts: Sequence[int]) -> Estimate:
    """Cohen's kappa of N verdicts and N labels, with an interval over prompts: 1 for equality, 0 for agreement by chance.

    Kappa is (observed − expected) / (1 − expected) for the share of equal pairs, where the expected share is that of independent
    verdicts with the same shares of yes (Cohen 1960). The interval is that of `_of_pairs`. NaN where verdicts and labels are
    all yes or all no. Raises ValueError without verdicts.
    """
    return _of_pairs(_kappa, verdicts, labels, prompts, extremes=(0.0, 1.0), lowest=-1.0)


def area_under_curve(scores: Sequence[float], labels: Sequence[bool], prompts: Sequence[int]) -> Estimate:
    """The AUC of N scores and N labels: the share of pairs of a yes and a no in which the yes has the higher score.

    A tie counts half. 0.5 for scores that say nothing about the labels. The interval is that of `_of_pairs`. NaN without both
    labels. Raises ValueError without scores. Source: Hanley and McNeil 1982.
    """
    return _of_pairs(_auc, scores, labels, prompts, extremes=(-math.inf, math.inf), lowest=0.0)


def _of_pairs(
    figure: Callable[[ndarray, ndarray], float],
    values: Sequence[float],
    labels: Sequence[bool],
    prompts: Sequence[int],
    extremes: tuple[float, float],
    lowest: float,
) -> Estimate:
    """A figure of values and labels between `lowest` and 1, with Wilson's interval over prompts.

    Wilson's interval (1927) is computed for the figure's place between `lowest` and 1, and for the number of independent values
    whose mean would vary as much as the figure. The jackknife over prompts measures this variance. As in `share`, artificial
    prompts make the variance positive, and a factor from Student's t lowers the number: each label with the lowest and the
    highest value, `extremes`. A single prompt has no interval.
    """
    own, at, count = _by_prompt(values, prompts)
    other = np.asarray(labels, float)
    value = figure(own, other)
    if count < 2 or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    size = max(round(len(own) / count), 1)
    own = np.concatenate([own, np.repeat([*extremes, *extremes], size)])
    other = np.concatenate([other, np.repeat([0.0, 0.0, 1.0, 1.0], size)])
    at = np.concatenate([at, np.repeat(range(count, count + 4), size)])
    left_out = np.array([figure(own[at != prompt], other[at != prompt]) for prompt in range(count + 4)])
    span = 1 - lowest
    variance = (count + 3) * left_out.var() / span**2
    place = (figure(own, other) - lowest) / span
    worth = place * (1 - place) / variance * count / (count + 4) * (Z / t_quantile(count - 1)) ** 2
    low, high = _wilson((value - lowest) / span, worth)
    return Estimate(value, lowest + span * low, lowest + span * high)


def _wilson(share: float, number: float) -> tuple[float, float]:
    """Wilson's interval of a share of independent values, without continuity correction."""
    middle, whole = share + Z**2 / (2 * number), 1 + Z**2 / number
    half = Z * math.sqrt(share * (1 - share) / number + Z**2 / (4 * number**2))
    return (middle - half) / whole if share > 0 else 0.0, (middle + half) / whole if share < 1 else 1.0


def _auc(scores: ndarray, labels: ndarray) -> float:
    yes, no = scores[labels == 1][:, None], scores[labels == 0][None]
    return float(((yes > no) + 0.5 * (yes == no)).mean()) if yes.size and no.size else math.nan


def _kappa(verdicts: ndarray, labels: ndarray) -> float:
    if not len(verdicts):
        return math.nan
    observed, yes, positive = float((verdicts == labels).mean()), verdicts.mean(), labels.mean()
    expected = float(yes * positive + (1 - yes) * (1 - positive))
    return (observed - expected) / (1 - expected) if expected < 1 else math.nan


def distinct_n(texts: Sequence[str], n: int) -> float:
    """The share of distinct n-grams among all n-grams of words; 0 without n-grams. Low for a policy that repeats itself.

    The share falls with the amount of text, so compare only equal numbers of answers. Source: Li et al. 2016
    (arXiv:1510.03055).
    """
    runs = [
        tuple(words[i : i + n])
        for words in (text.lower().split() for text in texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(runs)) / len(runs) if runs else 0.0


def compare(own: Sequence[float], others: Sequence[float]) -> list[float]:
    """For each pair of scores: 1 if the policy's own score is higher, 0.5 for equal scores, 0 otherwise."""
    return [(a > b) + 0.5 * (a == b) for a, b in zip(own, others, strict=True)]


@cache
def t_quantile(freedom: int) -> float:
    """The value t for which 95 % of Student's t distribution lie between −t and t. freedom: degrees of freedom, at least 1.

    Bisection on the closed form of the distribution (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
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
    """The values, the index of each value's prompt (from 0), and the number of prompts."""
    names, at = np.unique(np.asarray(prompts), return_inverse=True)
    if not len(names):
        raise ValueError("there are no answers to compute an interval of")
    return np.asarray(values, float), at, len(names)


def _variance_of_mean(residuals: ndarray, at: ndarray, count: int) -> float:
    """The variance of the mean of values that are correlated within a prompt."""
    sums = np.bincount(at, weights=residuals)
    return float(count / (count - 1) * (sums**2).sum() / len(residuals) ** 2)


def _independent(values: ndarray, at: ndarray, count: int) -> float:
    """The effective number of independent values among N values of G prompts: from G to N."""
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
    """Whether the length differences of wins and losses overlap, and the differences are not all positive or all negative."""
    won, lost = differences[wins >= 0.5], differences[wins <= 0.5]
    if not len(won) or not len(lost):
        return False
    overlap = won.min() < lost.max() and lost.min() < won.max()
    return bool(overlap and differences.min() <= 0 <= differences.max())


def _logistic_regression(features: ndarray, wins: ndarray) -> ndarray:
    """Coefficients [2] of a logistic regression of wins [N] on features [N, 2], by Newton's method."""
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
