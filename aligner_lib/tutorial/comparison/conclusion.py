"""The conclusions of a comparison of policies, as sentences."""

from __future__ import annotations

import math

from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate

MEASURES = {
    "good_gain": "share of good answers",
    "gain": "mean reward",
    "right_sums_gain": "share of right sums",
}
"""Titles of the measures, by the name of the gain in the table."""
GAIN, LOSS = "a gain is shown for", "a loss is shown for"


def conclusion(table: PolicyComparison, against: str) -> str:
    """The conclusions and the limits of a comparison: a sentence for each measure with the verdict for every policy.

    The verdict is a gain or a loss if the 95 % interval excludes 0, and "neither gain nor loss is shown" otherwise.
    table: the result of `compare_policies`. against: the policy that the others are compared with.
    """
    others = {name: figures for name, figures in table.figures.items() if name != against}
    sentences = []
    for measure, title in MEASURES.items():
        by_verdict: dict[str, list[str]] = {}
        for name, figures in others.items():
            if measure in figures:
                verdict = _verdict(figures[measure])
                by_verdict.setdefault(verdict, []).append(f"{name} ({_shown(figures[measure])})")
        if by_verdict:
            verdicts = "; ".join(f"{verdict} {', '.join(names)}" for verdict, names in by_verdict.items())
            sentences.append(f"The {title}, compared with {against}: {verdicts}.")
    return "\n".join(sentences + _not_shown(others))


def _not_shown(others: dict[str, dict]) -> list[str]:
    """Sentences about open questions."""
    sentences = []
    paid = [
        name
        for name, figures in others.items()
        if "good_gain" in figures
        and _verdict(figures["gain"]) == GAIN
        and _verdict(figures["good_gain"]) != GAIN
    ]
    if paid:
        sentences.append(
            f"The reward of {', '.join(paid)} is higher without a gain of good answers that is shown: the reward model may be "
            "wrong about these answers."
        )
    if not any("reward_by_seed" in figures for figures in others.values()):
        sentences.append(
            "The policies were trained with a single seed, so the intervals do not show how other seeds would do."
        )
    return sentences


def _shown(gain: Estimate) -> str:
    """A gain with its interval."""
    if math.isnan(gain.low):
        return f"{gain.value:+.2f}"
    zero = ", the interval includes 0" if gain.low <= 0 <= gain.high else ""
    return f"{gain.value:+.2f}, {gain.low:+.2f} to {gain.high:+.2f}{zero}"


def _verdict(gain: Estimate) -> str:
    if math.isnan(gain.low):
        return "not identifiable for"
    if gain.low > 0:
        return GAIN
    return LOSS if gain.high < 0 else "neither gain nor loss is shown for"
