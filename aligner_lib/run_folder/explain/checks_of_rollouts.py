"""Checks of the sampling and the rewards of responses. They are CHECKS as well; see checks.py."""

from __future__ import annotations

from aligner_lib.run_folder.explain.checks import ROLLOUTS, Quantity, check, samples_freely
from aligner_lib.run_folder.explain.evidence import Evidence


@check(
    "settings that cut the sampler without recompute_logprobs",
    "log-probabilities of a cut sampler are not the policy's: they must be computed again",
    of=ROLLOUTS,
    is_clue=True,
)
def sampler_cut(run: Evidence) -> Quantity | None:
    if samples_freely(run):
        return None
    # logged only by a run that computes log-probabilities again
    recomputed = bool(run.of("train_rollouts/sampler_mismatch_max"))
    return Quantity({min(run.of(ROLLOUTS)): 0.0 if recomputed else 1.0}, high=0.0)


@check(
    "share of responses without a reward",
    "a reward that raises, hangs, dies or is NaN teaches nothing",
    of="train_rollouts/rewards_failed",
)
def rewards_failed(run: Evidence) -> Quantity | None:
    return Quantity(run.of("train_rollouts/rewards_failed"), high=0.1)
