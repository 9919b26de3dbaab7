"""The conclusions of a comparison of policies, as sentences."""

from __future__ import annotations

import math

from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate

MEASURES = {"good_gain": "share of good answers", "gain": "mean reward"}


def conclusion(table: PolicyComparison, against: str) -> str:
    """A sentence for each measure, which states the verdict for every policy.

    The verdict is a gain or a loss if the 95 % interval excludes 0, and "neither gain nor loss is shown" otherwise.
    table: the result of `compare_policies`. against: the policy that the others are compared with.
    """
    sentences = []
    for measure, title in MEASURES.items():
        if not any(measure in figures for figures in table.figures.values()):
            continue
        by_verdict: dict[str, list[str]] = {}
        for name, figures in table.figures.items():
            if name != against:
                verdict, figure = _verdict(figures[measure])
                by_verdict.setdefault(verdict, []).append(f"{name} ({figure})")
        verdicts = "; ".join(f"{verdict} {', '.join(names)}" for verdict, names in by_verdict.items())
        sentences.append(f"The {title}, compared with {against}: {verdicts}.")
    return "\n".join(sentences)


def _verdict(gain: Estimate) -> tuple[str, str]:
    """The verdict in words, and the gain with its interval."""
    figure = f"{gain.value:+.2f}, {gain.low:+.2f} to {gain.high:+.2f}"
    if math.isnan(gain.low):
        return "not identifiable for", f"{gain.value:+.2f}"
    if gain.low > 0:
        return "a gain is shown for", figure
    return ("a loss is shown for" if gain.high < 0 else "neither gain nor loss is shown for"), figure
