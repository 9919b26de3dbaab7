"""Does a reward model know how sure it may be? Its stated probabilities beside how often it is right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp
from statistics import fmean
from typing import NamedTuple

from aligner_lib.tutorial.comparison.statistics import Estimate, share


class Confidence(NamedTuple):
    """Pairs of which a reward model is about equally sure. stated: σ of the distance of the rewards, the mean; right: the share
    of the pairs in which the chosen answer has the higher reward, with its interval of 95 %."""

    stated: float
    right: Estimate
    pairs: int


def calibration(margins: Sequence[float], groups: int = 5) -> list[Confidence]:
    """The pairs in groups of equal size, the least sure first.

    margins: of each pair, the reward of the chosen answer minus that of the rejected one. In the Bradley-Terry model a distance d
    states that the answer with the higher reward is preferred with probability σ(d) (Bai et al. 2022, section 3.3).
    """
    by_distance = sorted(margins, key=abs)
    ends = [round(len(margins) * part / groups) for part in range(groups + 1)]
    return [_of_group(by_distance[start:end]) for start, end in pairwise(ends) if start < end]


def _of_group(margins: Sequence[float]) -> Confidence:
    stated = fmean(1 / (1 + exp(-abs(margin))) for margin in margins)
    return Confidence(
        stated, share([float(margin > 0) for margin in margins], range(len(margins))), len(margins)
    )
