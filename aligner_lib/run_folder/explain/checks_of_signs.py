"""Checks of signs, bounds and exact zeros, which hold for any settings and data, for all kinds of job.

These checks are also part of CHECKS; see checks.py.
"""

from __future__ import annotations

import math
from bisect import bisect
from fractions import Fraction
from itertools import pairwise
from statistics import fmean

from aligner_lib.algorithms.preference_losses import LOSSES
from aligner_lib.run_folder.explain.checks import (
    CRITIC,
    LIMITS,
    PAIRS,
    ROLLOUTS,
    SOME,
    SUPERVISED,
    Quantity,
    advantages_scaled,
    check,
    correlation_with_reward,
    kl_penalty,
    switch,
)
from aligner_lib.run_folder.explain.evidence import Evidence, Series, combined, first

OWN_GROUP = ("group_mean", "leave_one_out", "batch_mean")  # baselines whose advantages add up to 0
NEVER_NEGATIVE = ("k2", "k3")  # KL estimators


# ---- every trainer --------------------------------------------------------------------------------------------------


@check("learning rate ÷ model.optim.lr at the start", "a schedule starts above 0")
def rate_above_zero(run: Evidence) -> Quantity | None:
    rates, peak = run.of("train_optim/lr") or run.of("train/lr"), run.model("optim.lr")
    if not peak:
        return None
    return Quantity({step: rate / peak for step, rate in list(rates.items())[:3]}, low=SOME)


@check(
    "critic/grad_norm",
    "a gradient that is exactly 0 moves nothing: the critic's weights are frozen, or no token counts in the loss",
    of=CRITIC,
)
def critic_gradient(run: Evidence) -> Quantity | None:
    return Quantity(run.of("critic/grad_norm"), low=SOME)


# ---- sft, rm, dpo ---------------------------------------------------------------------------------------------------


@check("train/loss", "no likelihood is above 1, so −log p is not below 0", of=SUPERVISED)
def loss_positive(run: Evidence) -> Quantity | None:
    loss = LOSSES.get(run.model("dpo.preference_loss"))
    if loss is not None and loss.may_be_negative:
        return None
    return Quantity(run.with_settings(run.of("train/loss")), low=0.0)


@check(
    "|change| of validation/loss between validations",
    "weights that move change at least the last digits of the loss",
    of=SUPERVISED,
)
def weights_move(run: Evidence) -> Quantity | None:
    losses, rates = run.of("validation/loss"), run.of("train/lr")
    # the end of a schedule, or a user, may set the rate to 0, and then no weight has to move
    learnt = [step for step, rate in rates.items() if rate > 0]
    moved = {
        step: abs(losses[step] - losses[before])
        for before, step in pairwise(losses)
        if not rates or bisect(learnt, before) < bisect(learnt, step)
    }
    return Quantity(moved, low=SOME)


def _margins(run: Evidence, group: str) -> Series:
    chosen, rejected = (run.of(f"{group}/rewards_{side}_mean") for side in ("chosen", "rejected"))
    return combined(lambda a, b: a - b, chosen, rejected)


@check(
    "loss ÷ −log σ(rewards_chosen_mean − rewards_rejected_mean)",
    "−log σ is convex: the mean loss of pairs is at least the loss of their mean margin",
    of=PAIRS,
)
def pair_loss_bound(run: Evidence) -> Quantity | None:
    """Check training and validation, if the loss is −log σ of the logged margin."""
    loss, takes_means = run.model("dpo.preference_loss"), run.model("dpo.preference_average_log_probs", False)
    is_of_margin = loss is None or (loss == "dpo" and not takes_means)  # None: a reward model's loss
    if not is_of_margin:
        return None

    def share(loss: float, margin: float) -> float | None:
        bound = _minus_log_sigmoid(margin)
        return loss / bound if bound > 1e-6 else None  # at such margins nothing is left to learn

    shares: Series = {}
    for group in ("validation", "train"):
        of_group = combined(share, run.with_settings(run.of(f"{group}/loss")), _margins(run, group))
        shares |= {step: min(value, shares.get(step, value)) for step, value in of_group.items()}
    slack = LIMITS.exact if run.in_float32 else 0.02
    return Quantity(dict(sorted(shares.items())), low=1 - slack)


def _minus_log_sigmoid(margin: float) -> float:
    return max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))


def _begins_at_chance(run: Evidence) -> bool:
    """Whether the accuracy of pairs is about a half at the start. Without a reference, a policy begins with preferences of its
    own, for example for responses that it has written."""
    loss = run.model("dpo.preference_loss")
    return loss != "kto" and (loss not in LOSSES or LOSSES[loss].has_reference)


@check(
    "train/acc, standard errors above 0.5, over the second half",
    "a model that learns from pairs prefers their better sides at least as often as a coin",
    of=PAIRS,
)
def accuracy_by_chance(run: Evidence) -> Quantity | None:
    accuracies = run.with_settings(run.of("train/acc"))
    margins = _margins(run, "train")
    decided = {step: acc for step, acc in accuracies.items() if margins.get(step)}  # ties count as mistakes
    second = dict(list(decided.items())[len(decided) // 2 :])
    pairs = len(second) * run.model("global_batch_size", 1)
    if not _begins_at_chance(run) or len(second) < 5:
        return None
    errors = (fmean(second.values()) - 0.5) / (0.5 / math.sqrt(pairs))
    return Quantity({min(second): errors}, low=-LIMITS.chance)


@check(
    "validation/acc after the start",
    "the model does not prefer the rejected responses of held-out pairs that have the same meaning",
    of=PAIRS,
)
def validation_accuracy(run: Evidence) -> Quantity | None:
    margins, accuracies = _margins(run, "validation"), run.with_settings(run.of("validation/acc"))
    later = {step: acc for step, acc in accuracies.items() if step > 0 and margins.get(step)}
    # an accuracy is a fraction of the number of pairs, so an older run has at least as many pairs as the largest denominator
    fractions = [Fraction(acc).limit_denominator(1000) for acc in accuracies.values()]
    pairs = max(1, run.validation_samples, *(fraction.denominator for fraction in fractions))
    low = min(LIMITS.validation_accuracy, 0.5 - LIMITS.chance * 0.5 / math.sqrt(pairs))
    if not _begins_at_chance(run) or low <= 0:
        return None
    return Quantity(later, low=low, times=2)


@check(
    "the largest |reward| of the pairs at step 0",
    "a new head gives 0, and a policy that equals its reference has gained nothing",
    of=PAIRS,
    is_clue=True,
)
def start_rewards(run: Evidence) -> Quantity | None:
    loss = LOSSES.get(run.model("dpo.preference_loss"))
    new_head = not run.model("init_method_std", 0.0) and first(run.of("validation/rewards_all_std")) == {
        0: 0.0
    }
    if not (new_head if loss is None else loss.has_reference):
        return None
    sides = [run.of(f"validation/rewards_{side}_mean") for side in ("chosen", "rejected")]
    largest = combined(lambda a, b: max(abs(a), abs(b)), *sides)
    at_start = {step: value for step, value in run.with_settings(largest).items() if step == 0}
    return Quantity(at_start, high=1e-3)


# ---- rollouts -------------------------------------------------------------------------------------------------------


@check(
    "upper bound of train_optim/tokens ÷ response tokens",
    "training covers only tokens of responses",
    of=ROLLOUTS,
)
def tokens_beyond(run: Evidence) -> Quantity | None:
    epochs = run.rollout("rollout_epochs", 1)
    names = ("train_rollouts/generation_length", "train_rollouts/rollout_size")
    written = combined(lambda length, size: length * size * epochs, *map(run.of, names))
    learnt = run.with_settings(run.of("train_optim/tokens"))
    return Quantity(combined(lambda a, b: a / b, learnt, written), high=1 + 1e-5)


@check(
    "correlation of the advantages of a response's first and last token with its reward, the higher of the two",
    "a response with a higher reward than the others does not become less likely at both of its ends",
    of=ROLLOUTS,
)
def advantage_sign(run: Evidence) -> Quantity | None:
    if switch(run, "baseline") == "teacher" or switch(run, "aggregation") == "normalize_then_sum":
        return None  # the advantage does not follow the sum of the rewards
    correlations = [correlation_with_reward(run, place, least=16) for place in (0, -1)]
    if None in correlations:
        return None
    return Quantity({min(run.with_settings(run.learnt_rollouts)): max(correlations)}, low=-LIMITS.end_follows)


# ---- PPO ------------------------------------------------------------------------------------------------------------


@check(
    "sign of (rewards − rlhf_rewards) ÷ (kl_coef × init_policy_kl × length)",
    "distance from the reference reduces the reward and never raises it",
    of=CRITIC,
)
def kl_penalty_sign(run: Evidence) -> Quantity | None:
    share = kl_penalty(run)
    return share and Quantity(share.values, low=-LIMITS.exact)


@check(
    "|learnt_advantages_std ÷ advantages_std − 1|",
    "normalising changes the scale of advantages; an unchanged scale means that nothing was normalised",
    of=CRITIC,
    is_clue=True,
)
def advantages_raw(run: Evidence) -> Quantity | None:
    scaled = advantages_scaled(run)
    if scaled is None or not scaled.off():
        return None
    learnt, raw = (run.of(f"train_rollouts/{name}_std") for name in ("learnt_advantages", "advantages"))
    changes = combined(lambda a, b: abs(a / b - 1) if b > 0 else None, run.with_settings(learnt), raw)
    return Quantity(changes, low=LIMITS.exact)


# ---- GRPO -----------------------------------------------------------------------------------------------------------


@check(
    "advantages_mean ÷ advantages_std",
    "a group's advantages are differences from the group's mean, so they add up to 0",
    of="train_rollouts/reward_std_in_group",
)
def group_centred(run: Evidence) -> Quantity | None:
    if switch(run, "baseline") not in OWN_GROUP:
        return None
    mean, spread = (run.of(f"train_rollouts/advantages_{name}") for name in ("mean", "std"))
    share = combined(lambda a, b: a / b if b > 0 else None, run.with_settings(mean), spread)
    return Quantity(share, -LIMITS.exact, LIMITS.exact)


@check(
    "train_optim/kl_loss",
    "the KL estimators k2 and k3 are never negative",
    of="train_optim/kl_loss",
)
def kl_loss_positive(run: Evidence) -> Quantity | None:
    if switch(run, "kl") not in NEVER_NEGATIVE:
        return None
    return Quantity(run.with_settings(run.of("train_optim/kl_loss")), low=-1e-6)
