"""The checks of a run of any kind. Each check is a quantity with its range in a healthy run.

Most ranges follow from the algorithm and leave slack only for rounding. For example, before any update two passes over the same
tokens agree, and the policy equals its reference. The few ranges that were measured on runs are in LIMITS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.algorithms.preference_losses import LOSSES
from aligner_lib.run_folder.explain.evidence import Evidence, Series, combined, first, later


@dataclass(frozen=True)
class Limits:
    """The borders of the healthy ranges. docs/decisions/alarms.md lists the runs behind the measured borders."""

    # Rounding: the difference of two passes over the same tokens with the same weights.
    passes_float32: float = 1e-4
    """In nats per token."""
    passes_bf16: float = 0.02
    ratio_float32: float = 1e-3
    ratio_bf16: float = 0.02
    mean_loss: float = 0.02
    """The actor's loss if it is the mean of −A over all tokens and A has mean 0."""
    exact: float = 1e-3
    """Identities between metrics that are logged with at least six digits."""
    # Measured.
    penalty: tuple[float, float] = (0.2, 5.0)
    """The KL penalty divided by coefficient × length × KL per token."""
    kl_share: float = -0.25
    """The mean of log π − log π_ref divided by the mean of its absolute value."""
    reward_std: tuple[float, float] = (0.1, 3.0)
    """Standard deviation of the first rollout's rewards, from a standardized reward model."""
    first_kl: float = 0.5
    """Nats per token after the updates of the first rollout."""
    end_follows: float = 0.3
    """Correlation of a response's last advantage with its reward, within steps."""
    chance: float = 4.0
    """Number of standard errors by which an accuracy may be below 0.5."""
    validation_accuracy: float = 0.2
    """The least accuracy on held-out pairs; for fewer than 45 pairs `chance` sets a lower limit."""
    loss_rise: float = 0.1
    """Relative rise from the mean loss of the first quarter to the mean loss of the last quarter."""


LIMITS = Limits()
SOME = math.ulp(0.0)  # the smallest number above 0


@dataclass(frozen=True)
class Quantity:
    """A quantity at each step, and its range in a healthy run."""

    values: Series
    low: float = -math.inf
    high: float = math.inf
    times: int = 1
    """The number of values that must be outside the range before the check fails."""

    def off(self) -> Series:
        """The values outside the range; empty if fewer than `times`."""
        outside = {step: value for step, value in self.values.items() if not self.low <= value <= self.high}
        return outside if len(outside) >= self.times else {}

    def shown(self, value: float) -> str:
        """The value with four significant digits, or as many as tell the values outside the range from the range's borders."""
        digits = 4
        while _rounded(self.off().values(), digits) & _rounded((self.low, self.high), digits):
            digits += 1
        return f"{value:.{digits}g}"

    @property
    def healthy(self) -> str:
        """The range in words."""
        if math.isinf(self.low):
            return f"at most {self.shown(self.high)}"
        if self.low == SOME:
            return "above 0"
        if math.isinf(self.high):
            return f"at least {self.shown(self.low)}"
        middle = (self.low + self.high) / 2
        if self.low == self.high:
            return self.shown(self.low)
        if self.high - self.low <= 0.05:
            return f"{round(middle, 6):.6g}, within {(self.high - self.low) / 2:.2g}"
        return f"between {self.shown(self.low)} and {self.shown(self.high)}"


def _rounded(values: Iterable[float], digits: int) -> set[str]:
    return {f"{value:.{digits}g}" for value in values}


@dataclass(frozen=True)
class Check:
    """A quantity to check.

    figure: the quantity's formula in metrics; why: the reason for the healthy range; of: a metric that identifies the runs to
    check. A check does not depend on the kind of job. Metrics and settings show what the run computes, so a kind of your own
    gets all checks of the metrics that it logs.
    """

    name: str
    figure: str
    why: str
    of: str
    quantity: Callable[[Evidence], Quantity | None]
    """None: the run lacks the metrics, or its settings do not allow the check."""
    is_clue: bool = False
    """The check distinguishes between causes. Outside its range, the quantity alone is not a fault."""
    is_consequence: bool = False
    """Any fault may cause this failure, so no cause has to explain the failure."""


CHECKS: list[Check] = []


SUPERVISED, PAIRS = "train/consumed_samples", "train/rewards_chosen_mean"
ROLLOUTS, CRITIC = "train_rollouts/kl", "train_rollouts/values_mean"


def check(figure: str, why: str, of: str = "", is_clue: bool = False, is_consequence: bool = False):
    """A decorator for a function that computes a quantity of a run. Adds a Check with the function's name to CHECKS."""

    def add(quantity: Callable) -> Callable:
        def quantity_or_none(run: Evidence) -> Quantity | None:
            computed = quantity(run)
            return computed if computed is not None and computed.values else None

        CHECKS.append(Check(quantity.__name__, figure, why, of, quantity_or_none, is_clue, is_consequence))
        return quantity

    return add


# ---- every trainer --------------------------------------------------------------------------------------------------


@check("learning rate ÷ model.optim.lr", "a schedule never goes above its peak")
def learning_rate(run: Evidence) -> Quantity | None:
    rates = run.of("train_optim/lr") or run.of("train/lr")
    peak = run.model("optim.lr")
    if not peak:
        return None
    last = min(run.changed_at, default=math.inf)
    own = [(step, rate / peak) for step, rate in run.with_settings(rates).items() if step <= last]
    return Quantity(dict(own[:3]), high=1 + LIMITS.exact)


@check(
    "gradient norm",
    "a gradient that is exactly 0 moves nothing: weights are frozen, or no token counts in the loss",
)
def gradient(run: Evidence) -> Quantity | None:
    norms = run.of("train_optim/grad_norm") or run.of("train/grad_norm")
    # without a KL term, groups whose rewards are all equal have no gradient; see groups_alike
    alike = run.of("train_rollouts/groups_alike")
    return Quantity({step: norm for step, norm in norms.items() if alike.get(step) != 1}, low=SOME)


# ---- sft, rm, dpo ---------------------------------------------------------------------------------------------------


@check(
    "train/loss at step 1",
    "with a new head, or a policy that equals its reference, both answers are equal: the loss is ln 2",
    of=PAIRS,
)
def first_loss(run: Evidence) -> Quantity | None:
    losses = run.with_settings(run.of("train/loss"))
    loss = LOSSES.get(run.model("dpo.preference_loss"))
    has_sft_term = run.model("dpo.sft_loss_weight", 0.0) > 0
    of_dpo = loss is not None and loss.begins_at_ln_2 and not has_sft_term
    new_head = list(run.of("validation/rewards_all_std").items())[:1] == [(0, 0.0)]
    if 1 not in losses or not (of_dpo or new_head):
        return None
    slack = LIMITS.exact if run.in_float32 else 0.02
    return Quantity({1: losses[1]}, math.log(2) - slack, math.log(2) + slack)


@check(
    "train/loss, last quarter ÷ first quarter", "training lowers the loss that it trains on", of=SUPERVISED
)
def loss_falls(run: Evidence) -> Quantity | None:
    losses = run.with_settings(run.of("train/loss"))
    quarter = len(losses) // 4
    if quarter < 3:
        return None
    values = list(losses.values())
    begins, ends = values[:quarter], values[-quarter:]
    if fmean(begins) <= 0:
        return None
    noise = math.hypot(stdev(begins), stdev(ends)) / math.sqrt(quarter)
    slack = max(LIMITS.loss_rise, 4 * noise / fmean(begins))
    return Quantity({max(losses): fmean(ends) / fmean(begins)}, high=1 + slack)


@check("validation/kl at step 0", "before training the policy equals its reference", of=PAIRS)
def reference_of_dpo(run: Evidence) -> Quantity | None:
    noise = _noise(run)
    start = {step: value for step, value in run.of("validation/kl").items() if step == 0}
    return Quantity(start, -noise, noise)


# ---- rollouts: two passes over the same tokens ----------------------------------------------------------------------


def _noise(run: Evidence) -> float:
    return LIMITS.passes_float32 if run.in_float32 else LIMITS.passes_bf16


def samples_freely(run: Evidence) -> bool:
    """Whether tokens are sampled from the policy's full distribution, without a setting that excludes tokens."""
    sampling = "sampling_params."
    return (
        run.rollout(f"{sampling}top_k", 0) == 0
        and run.rollout(f"{sampling}top_p", 1.0) == 1.0
        and not run.rollout(f"{sampling}use_greedy", False)
        and run.rollout("length_params.min_length", 1) <= 1
    )


def switch(run: Evidence, name: str) -> object:
    """A switch of the objective: its own setting, else the preset's value; None for a run without an objective."""
    return run.rollout(name) or getattr(PRESETS.get(str(run.rollout("objective"))), name, None)


def _mismatch(run: Evidence) -> Series:
    """The sampler mismatch of a run that samples from the policy's full distribution; empty for other runs."""
    return run.of("train_rollouts/sampler_mismatch") if samples_freely(run) else {}


@check(
    "sampler_mismatch at the first step",
    "before any update generation and training have the same weights",
    of=ROLLOUTS,
)
def sampler_first(run: Evidence) -> Quantity | None:
    return Quantity(run.with_settings(first(_mismatch(run))), high=_noise(run))


@check("sampler_mismatch, later", "each step generates with the weights that it then trains", of=ROLLOUTS)
def sampler_later(run: Evidence) -> Quantity | None:
    return Quantity(run.with_settings(later(_mismatch(run))), high=_noise(run))


@check("first_ppo_ratio", "before a step's first update π_now is π_old", of=ROLLOUTS)
def first_ratio(run: Evidence) -> Quantity | None:
    slack = LIMITS.ratio_float32 if run.in_float32 else LIMITS.ratio_bf16
    return Quantity(run.with_settings(run.of("train_optim/first_ppo_ratio")), 1 - slack, 1 + slack)


@check(
    "tokens of a response whose passes differ, at the first step",
    "one token for each response: an edge of the mask; most tokens: the computation of log-probabilities",
    of=ROLLOUTS,
    is_clue=True,
)
def odd_tokens(run: Evidence) -> Quantity | None:
    """A lower bound of the number of tokens: the sum of the differences divided by the largest difference, or else the clipped
    fraction times the length."""
    length, mismatch = run.of("train_rollouts/generation_length"), first(_mismatch(run))
    if sampler_first(run).off():
        largest = run.of("train_rollouts/sampler_mismatch_max")
        differing = combined(
            lambda mean, most, size: mean / most * size if most else None, mismatch, largest, length
        )
    elif first_ratio(run).off():
        clipped = first(run.with_settings(run.of("train_optim/clip_fraction")))
        differing = combined(lambda share, size: share * size, clipped, length)
    else:
        return None
    return Quantity(differing, high=1.5)


@check("rollouts that repeat an earlier step's", "every step draws its own responses", of=ROLLOUTS)
def repeated(run: Evidence) -> Quantity | None:
    names = ("rewards", "generation_length", "prompt_lengths", "entropy")
    figures = [run.of(f"train_rollouts/{name}") for name in names]
    steps = [step for step in figures[0] if all(step in series for series in figures)]
    again = {
        step: float(all(series[step] == series[before] for series in figures))
        for before, step in pairwise(steps)
    }
    return Quantity(again, 0, 0)


# ---- rollouts: the reference ----------------------------------------------------------------------------------------


def _after_updates(run: Evidence, series: Series) -> Series:
    """The values at the steps after the first update that moves the policy."""
    rates, norms = run.of("train_optim/lr"), run.of("train_optim/grad_norm")
    began = next((step for step, rate in rates.items() if rate > 0 and norms.get(step) != 0), None)
    return {} if began is None else {step: value for step, value in series.items() if step > began}


@check("init_policy_kl at the first step", "before training the policy equals its reference", of=ROLLOUTS)
def reference_first(run: Evidence) -> Quantity | None:
    noise = _noise(run)
    return Quantity(run.with_settings(first(run.of("train_rollouts/init_policy_kl"))), -noise, noise)


@check(
    "the largest |KL| a token after updates",
    "a policy that learns moves away from a reference that does not",
    of=ROLLOUTS,
)
def reference_rests(run: Evidence) -> Quantity | None:
    kl, size = run.of("train_rollouts/kl"), run.of("train_rollouts/init_policy_kl")
    moved = _after_updates(run, combined(lambda a, b: max(abs(a), abs(b)), kl, size))
    if len(moved) < 2:
        return None
    return Quantity({min(moved): max(moved.values())}, low=1e-6 if run.in_float32 else 1e-12)


@check(
    "kl ÷ init_policy_kl", "a KL is not negative; its estimate may be, by chance and by little", of=ROLLOUTS
)
def kl_positive(run: Evidence) -> Quantity | None:
    # the mean over the tokens that a cut sampler draws is not a KL, and may be negative
    if not run.loop("use_absolute_kl", False) or not samples_freely(run):
        return None
    kl, size = run.with_settings(run.of("train_rollouts/kl")), run.of("train_rollouts/init_policy_kl")
    return Quantity(
        combined(lambda a, b: a / b if b > 0.05 else None, kl, size), low=LIMITS.kl_share, times=3
    )


# ---- PPO: identities between its metrics ----------------------------------------------------------------------------


def _shaped(run: Evidence) -> Series | None:
    """The mean of PPO's rewards before the KL penalty; None if the logged means do not determine the result."""
    if any(run.loop(name) is not None for name in ("reward_clip", "overlong_buffer")):
        return None
    penalty = run.loop("missing_eos_penalty", 0.0)
    ended = run.with_settings(run.of("train_rollouts/fraction_of_samples_properly_ended"))
    if penalty:  # the share counts all responses, but the rewards' means only those whose reward did not fail
        failed = run.of("train_rollouts/rewards_failed")
        ended = {step: share for step, share in ended.items() if not failed.get(step)}
    return combined(
        lambda reward, share: reward - penalty * (1 - share), run.of("train_rollouts/rewards"), ended
    )


def _without_failures(run: Evidence) -> bool:
    return not any(
        value
        for record in run.records
        for name, value in record.items()
        if name.startswith("train_environments/") and name.endswith("/failed")
    )


@check(
    "(rewards − rlhf_rewards) ÷ (kl_coef × init_policy_kl × length)",
    "the KL penalty of a response is its summed KL times the coefficient",
    of=CRITIC,
)
def kl_penalty(run: Evidence) -> Quantity | None:
    shaped = _shaped(run)
    if shaped is None:
        return None
    names = ("rlhf_rewards", "kl_coef", "init_policy_kl", "generation_length")

    def share(reward: float, rlhf: float, coefficient: float, kl: float, length: float) -> float | None:
        expected = coefficient * kl * length
        return (reward - rlhf) / expected if kl > 0.05 and expected > 0 else None

    low, high = LIMITS.penalty
    return Quantity(combined(share, shaped, *(run.of(f"train_rollouts/{name}") for name in names)), low, high)


def _expected_tokens(run: Evidence) -> Series:
    """The number of response tokens in a step's updates; empty if settings leave tokens out."""
    if run.loop("mask_truncated_responses", False) or run.loop("max_policy_kl") is not None:
        return {}
    epochs = run.rollout("rollout_epochs", 1)
    length, size = (run.of(f"train_rollouts/{name}") for name in ("generation_length", "rollout_size"))
    size = run.with_settings(size)
    return combined(lambda a, b: a * b * epochs, length, size) if _without_failures(run) else {}


@check("train_optim/tokens ÷ response tokens", "PPO learns from every token of every response", of=CRITIC)
def tokens_learnt(run: Evidence) -> Quantity | None:
    share = combined(lambda a, b: a / b, run.of("train_optim/tokens"), _expected_tokens(run))
    return Quantity(share, 1 - 1e-5, 1 + 1e-5)


@check(
    "tokens left out a response, or a response that ended, over the run",
    "one for each: the missing token is the last one, which ends a response",
    of=CRITIC,
    is_clue=True,
)
def last_tokens(run: Evidence) -> Quantity | None:
    learnt = tokens_learnt(run)
    if learnt is None or not learnt.off():
        return None
    epochs, expected = run.rollout("rollout_epochs", 1), _expected_tokens(run)
    left_out = combined(lambda a, b: a - b, expected, run.of("train_optim/tokens"))
    responses = run.of("train_rollouts/rollout_size")
    share = run.of("train_rollouts/fraction_of_samples_properly_ended")
    ended = combined(lambda a, b: a * b, share, responses)
    shares = [
        sum(left_out.values()) / (epochs * sum(of[step] for step in left_out))
        for of in (responses, ended)
        if sum(of.values())
    ]
    nearest = min(shares, key=lambda value: abs(value - 1))
    return Quantity({min(left_out): nearest}, high=0.5)


@check("learnt_advantages_std", "advantages are normalised over the tokens in the loss", of=CRITIC)
def advantages_scaled(run: Evidence) -> Quantity | None:
    if not run.loop("normalize_advantages", True):
        return None
    scale = run.with_settings(run.of("train_rollouts/learnt_advantages_std"))
    # the 1e-8 under the root of `normalize` shows in smaller advantages
    raw = run.of("train_rollouts/advantages_std")
    scale = {step: value for step, value in scale.items() if value and raw.get(step, 1.0) >= 0.005}
    return Quantity(scale, 1 - LIMITS.exact, 1 + LIMITS.exact)


@check("learnt_advantages_mean", "advantages are normalised over the tokens in the loss", of=CRITIC)
def advantages_centred(run: Evidence) -> Quantity | None:
    if not run.loop("normalize_advantages", True):
        return None
    means = run.with_settings(run.of("train_rollouts/learnt_advantages_mean"))
    return Quantity(means, -LIMITS.exact, LIMITS.exact)


@check(
    "train_optim/loss of a step with one update",
    "it is the mean of −A over all tokens in the loss, and normalised advantages have mean 0",
    of=CRITIC,
)
def mean_loss(run: Evidence) -> Quantity | None:
    plain = run.rollout("entropy_bonus", 0.0) == 0 and run.rollout("sampler_correction", "none") == "none"
    if not plain or not run.loop("normalize_advantages", True):
        return None
    losses = combined(
        lambda loss, updates: loss if updates == 1 else None,
        run.with_settings(run.of("train_optim/loss")),
        run.of("train_optim/updates"),
    )
    return Quantity(losses, -LIMITS.mean_loss, LIMITS.mean_loss)


@check(
    "(returns_last − rewards) ÷ rewards_std at the first step",
    "the last token gets the response's reward, and no KL is subtracted yet",
    of=CRITIC,
)
def reward_at_the_end(run: Evidence) -> Quantity | None:
    shaped = _shaped(run)
    if shaped is None or run.loop("whiten_rewards", False):
        return None
    spread, last = run.of("train_rollouts/rewards_std"), run.of("train_rollouts/returns_last")
    kl = first(run.of("train_rollouts/init_policy_kl"))
    still = {step: value for step, value in kl.items() if abs(value) <= _noise(run)}
    share = combined(lambda _, end, reward, std: (end - reward) / max(std, 1e-3), still, last, shaped, spread)
    slack = LIMITS.exact if run.in_float32 else 0.02
    return Quantity(share, -slack, slack)


# ---- PPO: the advantages of single tokens ---------------------------------------------------------------------------


def _share_without(run: Evidence, place: int) -> Series:
    """The fraction of each step's responses whose token at this position has an advantage of exactly 0; empty if advantages are
    not normalised."""
    if not run.loop("normalize_advantages", True):
        return {}
    return {
        step: fmean(response["token_advantage"][place] == 0 for response in responses)
        for step, responses in run.with_settings(run.learnt_rollouts).items()
    }


@check(
    "responses whose first token has no advantage",
    "normalised advantages are exactly 0 only outside the mask of the loss",
    of=CRITIC,
)
def first_token(run: Evidence) -> Quantity | None:
    return Quantity(_share_without(run, 0), high=0.5)


@check(
    "responses whose last token has no advantage",
    "normalised advantages are exactly 0 only outside the mask of the loss",
    of=CRITIC,
)
def last_token(run: Evidence) -> Quantity | None:
    return Quantity(_share_without(run, -1), high=0.5)


def correlation_with_reward(run: Evidence, place: int, least: int) -> float | None:
    """For the token at `place` of each response: correlation of its advantage with the reward after clipping and penalties, within
    the responses to a prompt, or within steps if the groups are unknown. None for fewer than `least` responses."""
    if run.loop("overlong_buffer") is not None:
        return None
    clip, penalty = run.loop("reward_clip", math.inf), run.loop("missing_eos_penalty", 0.0)
    groups: dict[tuple, list[tuple[float, float]]] = {}
    compares_groups = run.rollout("objective") is not None
    for step, responses in run.with_settings(run.learnt_rollouts).items():
        for response in responses:
            # a compact recording of an earlier release does not have `finished`, so a penalty is unknown
            if response["reward"] is not None and ("finished" in response or not penalty):
                group = response.get("group") if compares_groups else None
                cut_off = not response.get("finished", True)
                reward = max(-clip, min(clip, response["reward"])) - penalty * cut_off
                groups.setdefault((step, group), []).append((reward, response["token_advantage"][place]))
    centred = []
    for pairs in groups.values():
        of_reward, of_advantage = (fmean(side) for side in zip(*pairs))
        centred += [(x - of_reward, y - of_advantage) for x, y in pairs]
    scale = sum(x * x for x, _ in centred) * sum(y * y for _, y in centred)
    return sum(x * y for x, y in centred) / math.sqrt(scale) if len(centred) >= least and scale > 0 else None


@check(
    "correlation of the last token's advantage with the reward",
    "the last token's advantage is the reward less the critic's value",
    of=CRITIC,
)
def end_follows_reward(run: Evidence) -> Quantity | None:
    correlation = correlation_with_reward(run, -1, least=20)
    if correlation is None:
        return None
    return Quantity({min(run.with_settings(run.learnt_rollouts)): correlation}, low=LIMITS.end_follows)


# ---- rollouts: scales, of measured runs -----------------------------------------------------------------------------


@check(
    "rewards_std at the first step",
    "a reward model's rewards are scaled to a deviation of 1 over its validation pairs",
    of=ROLLOUTS,
)
def reward_scale(run: Evidence) -> Quantity | None:
    # divided by their deviation, rewards have no scale; a KL that is part of the rewards is relative to it
    is_divided = switch(run, "scale") in ("group_std", "batch_std") and switch(run, "kl") != "reward"
    if run.by_program or is_divided:
        return None
    return Quantity(run.with_settings(first(run.of("train_rollouts/rewards_std"))), *LIMITS.reward_std)


@check(
    "kl after the first rollout's updates",
    "one rollout teaches little: the policy stays close to its start",
    of=ROLLOUTS,
)
def first_move(run: Evidence) -> Quantity | None:
    return Quantity(first(_after_updates(run, run.of("train_rollouts/kl"))), high=LIMITS.first_kl)
