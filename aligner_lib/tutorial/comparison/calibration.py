"""The calibration of a reward model: stated probabilities beside the shares of correctly ordered pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp
from statistics import fmean
from typing import NamedTuple

from aligner_lib.tutorial.comparison.statistics import Estimate, share


class Confidence(NamedTuple):
    """A group of pairs with similar distances of their rewards. stated: the mean of σ(distance); right: the share of pairs in which
    the chosen answer has the higher reward, with a 95 % interval; a tie counts half."""

    stated: float
    right: Estimate
    pairs: int


def calibration(margins: Sequence[float], groups: int = 5) -> list[Confidence]:
    """The pairs in groups of equal size, by increasing distance of their rewards.

    margins: the reward of the chosen answer minus the reward of the rejected answer, for each pair. By the Bradley-Terry model,
    people prefer the answer with the higher reward with probability σ(distance). Source: Bai et al. 2022, section 3.3.
    """
    by_distance = sorted(margins, key=abs)
    ends = [round(len(margins) * part / groups) for part in range(groups + 1)]
    return [_of_group(by_distance[start:end]) for start, end in pairwise(ends) if start < end]


def _of_group(margins: Sequence[float]) -> Confidence:
    stated = fmean(1 / (1 + exp(-abs(margin))) for margin in margins)
    right = [(margin > 0) + 0.5 * (margin == 0) for margin in margins]
    return Confidence(stated, share(right, range(len(margins))), len(margins))
