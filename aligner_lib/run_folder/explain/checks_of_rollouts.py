"""Checks of the sampling and the rewards of responses, which are also part of CHECKS; see checks.py."""

from __future__ import annotations

from statistics import fmean

from aligner_lib.run_folder import good_fall
from aligner_lib.run_folder.alarms import BASELINE, RECENT
from aligner_lib.run_folder.explain.checks import ROLLOUTS, Quantity, check, samples_freely
from aligner_lib.run_folder.explain.evidence import Evidence, first


@check(
    "settings that cut the sampler without recompute_logprobs",
    "log-probabilities of a cut sampler are not the policy's: they must be computed again",
    of=ROLLOUTS,
    is_clue=True,
)
def sampler_cut(run: Evidence) -> Quantity | None:
    if samples_freely(run):
        return None
    # logged only if the run computes log-probabilities again
    recomputed = run.with_settings(run.of("train_rollouts/sampler_mismatch_max"))
    begin = first(run.with_settings(run.of(ROLLOUTS)))
    return Quantity({step: 0.0 if recomputed else 1.0 for step in begin}, high=0.0)


@check(
    "share of responses without a reward",
    "a reward that raises, hangs, dies or is NaN teaches nothing",
    of="train_rollouts/rewards_failed",
)
def rewards_failed(run: Evidence) -> Quantity | None:
    return Quantity(run.of("train_rollouts/rewards_failed"), high=run.limits.rewards_failed)


@check(
    "share of groups whose rewards are all equal, the lowest of all steps",
    "a policy learns from the differences between the rewards of a group",
    of="train_rollouts/groups_alike",
    is_consequence=True,
)
def groups_alike(run: Evidence) -> Quantity | None:
    """The lowest, because a policy that has solved its task ends with equal rewards."""
    shares = run.of("train_rollouts/groups_alike")
    if len(shares) < RECENT:
        return None
    return Quantity({min(shares): min(shares.values())}, high=run.limits.groups_alike)


# ---- higher rewards without better responses ---------------------------------------------------------------------------


@check(
    "share of words copied from the prompt, mean of three steps",
    "an answer has words of its own; the share at the start is what the task needs",
    of="train_rollouts/copied_from_prompt",
    is_consequence=True,
)
def copied(run: Evidence) -> Quantity | None:
    shares = run.of("train_rollouts/copied_from_prompt")
    steps, values = list(shares), list(shares.values())
    start = fmean(values[: BASELINE - 1])
    means = {steps[end - 1]: fmean(values[end - RECENT : end]) for end in range(BASELINE, len(steps) + 1)}
    return Quantity(means, high=max(run.limits.copied, start + run.limits.copied_rise))


@check(
    "fall of the share of good responses while the reward rises, in standard errors",
    "a reward that measures quality rises together with the share of good responses",
    of="train_rollouts/good",
    is_consequence=True,
)
def good_falls(run: Evidence) -> Quantity | None:
    series = {metric: run.of(metric) for metric in good_fall.METRICS}
    records = [
        {"step": step} | {metric: values[step] for metric, values in series.items() if step in values}
        for step in (record["step"] for record in run.records)
    ]
    changes = good_fall.good_falls_of(records, BASELINE)
    falls = {
        step: change.errors if change.fall >= run.limits.good_fall or change.errors < 0 else 0.0
        for step, change in changes.items()
        if change.rise >= run.limits.good_reward_rise
    }
    return Quantity(falls, high=run.limits.good_errors)
