"""Alarms: signs in a run's metrics that need a person's attention, with their meaning and the setting to change.

The rules are pure functions of records. The run itself applies the rules and writes alarms.jsonl, so that batch jobs also have
alarms. Monitors apply the same rules. This module does not import torch.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from aligner_lib.run_folder import good_fall
from aligner_lib.run_folder.reader import STALE_SECONDS

# Number of first records that later records are compared with: the validation before training and three steps. With more
# records, a run of ten steps would no longer be at its start when the comparison begins.
BASELINE = 4
RISING = 0.1  # a fraction that has grown by this much since the start counts as rising
# number of last records that rules judge; most rules require all of them to agree, and so ignore a single odd step
RECENT = 3
VALIDATED = "validation/loss"  # marks a record with a validation; there are far fewer validations than steps


@dataclass(frozen=True)
class Thresholds:
    """The limits beyond which rules raise alarms.

    The defaults separate healthy from unhealthy runs of this project on SmolLM2-135M; docs/decisions/alarms.md has the measurements.
    """

    kl: float = 0.2
    """KL to the reference in nats per token."""
    reward_rise: float = 0.5
    """In standard deviations of the first rewards; reward_hacking also needs length_drift and kl."""
    length_drift: float = 0.2
    """Relative change of the response length."""
    entropy: float = 0.3
    """Fraction of the entropy at the start."""
    clip_fraction: float = 0.3
    """Fraction of tokens whose ratio was clipped."""
    first_ratio: float = 0.02
    """Distance of the ratio from 1 before the first update of a step."""
    finished: float = 0.5
    """Fraction of responses that end with a stop token or an end string."""
    groups_alike: float = 0.9
    """Fraction of groups whose rewards are all equal."""
    rewards_failed: float = 0.1
    """Fraction of responses without a reward."""
    copied: float = 0.3
    """Fraction of a response's words that are copied from its prompt; copies_prompt also needs a rise by copied_rise."""
    copied_rise: float = 0.15
    """Rise of the copied fraction since the start. The rise counts, too, because tasks that quote their prompts start with a
    high fraction."""
    good_fall: float = 0.1
    """Fall of the fraction of good responses since the start; good_falls also needs good_errors and good_reward_rise."""
    good_errors: float = 3.5
    """Fall of the fraction of good responses, in standard errors."""
    good_reward_rise: float = 0.25
    """Rise of the reward since the start, in standard deviations of the first rewards."""
    overfitting: float = 0.1
    """Relative rise of the validation loss above its lowest value, and relative fall of the training loss."""
    heartbeat_seconds: float = STALE_SECONDS


@dataclass(frozen=True)
class Alarm:
    """An alarm: an identifier, a title, a sentence on the meaning, and a sentence on the action to take.

    If several kinds of job have a setting in different groups, the text has only the last part of the setting's name.
    """

    name: str
    step: int
    title: str
    meaning: str
    control: str


@dataclass(frozen=True)
class Rule:
    """A rule that raises an alarm. Each kind of job lists its rules."""

    name: str
    """The name of the rule's alarm."""
    reads: tuple[str, ...]
    """The metrics that the rule reads."""
    judge: Callable[[Figures, Figures, Thresholds], Alarm | None]
    """A function of the metrics at the start, the metrics of the last records, and the thresholds."""

    def __call__(self, start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
        return self.judge(start, now, limits)


def rule(*reads: str) -> Callable[[Callable], Rule]:
    """A decorator that turns a function (start, now, limits) → Alarm or None into a Rule. reads: the metrics that the rule
    uses."""
    return lambda judge: Rule(judge.__name__, reads, judge)


def active(
    rules: Iterable[Rule],
    first: list[dict],
    recent: list[dict],
    limits: Thresholds = Thresholds(),
    validations: list[dict] = (),
) -> list[Alarm]:
    """Return the current alarms.

    first: the run's first records; recent: its last records; validations: all records with VALIDATED, whose `train/loss` is the
    mean since the validation before. All are ordered by step.
    """
    now = Figures(recent[-RECENT:], validations)
    start = Figures(first)
    return [alarm for rule in rules if (alarm := rule(start, now, limits)) is not None]


def is_validation(record: dict) -> bool:
    """Whether a record belongs into the `validations` of `active`."""
    return math.isfinite(record.get(VALIDATED, math.nan))


def metrics_read(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The metrics that the rules read."""
    return tuple(dict.fromkeys(name for rule in rules for name in rule.reads))


def stale(heartbeat_age: float, step: int, limits: Thresholds = Thresholds()) -> Alarm | None:
    """The alarm for a run that should be running but shows no sign of life. Only a monitor can raise this alarm, not the
    run."""
    if heartbeat_age <= limits.heartbeat_seconds:
        return None
    return Alarm(
        "stale_heartbeat",
        step,
        "No sign of life",
        f"run.json says that the run is running, but it has written nothing for over {limits.heartbeat_seconds:g} s: it hangs, its node is "
        "gone, or the file system is stuck.",
        "Read the job's log; cancel and submit it again to resume from the last checkpoint.",
    )


class Watch:
    """Follows a run record by record. `check` returns the alarms that start with a record."""

    def __init__(self, rules: Iterable[Rule], limits: Thresholds = Thresholds()):
        self.rules, self.limits = tuple(rules), limits
        self._first: list[dict] = []
        self._recent: deque[dict] = deque(maxlen=RECENT)
        self._validations: list[dict] = []
        # sum and number of the training losses since the last validation
        self._trained = (0.0, 0)
        self._sounding: set[str] = set()

    def remember(self, records: list[dict]) -> None:
        """Continue after earlier records of the run, in order. Alarms that were already active do not count as new."""
        known = [_numbers(record) for record in (*records[:BASELINE], *records[-RECENT:])]
        self._first, recent = known[: len(records[:BASELINE])], known[len(records[:BASELINE]) :]
        self._recent = deque(recent, maxlen=RECENT)
        self._validations, self._trained = [], (0.0, 0)
        for record in map(_numbers, records):
            self._follow_losses(record)
        self._sounding = {alarm.name for alarm in self._active()}

    def check(self, record: dict) -> list[Alarm]:
        """Return the alarms that start with this record."""
        if len(self._first) < BASELINE:
            self._first.append(record)
        self._recent.append(record)
        self._follow_losses(record)
        alarms = self._active()
        new = [alarm for alarm in alarms if alarm.name not in self._sounding]
        self._sounding = {alarm.name for alarm in alarms}
        return new

    def _follow_losses(self, record: dict) -> None:
        loss, (total, count) = record.get("train/loss", math.nan), self._trained
        if math.isfinite(loss):
            self._trained = total, count = total + loss, count + 1
        if is_validation(record):
            self._validations.append(record | ({"train/loss": total / count} if count else {}))
            self._trained = (0.0, 0)

    def _active(self) -> list[Alarm]:
        return active(self.rules, self._first, list(self._recent), self.limits, self._validations)


def _numbers(record: dict) -> dict:
    """The numeric values of a record. Other values are ignored, because a damaged file may contain anything."""
    largest = sys.float_info.max
    return {"step": 0} | {
        name: value
        for name, value in record.items()
        if type(value) is float or (type(value) is int and abs(value) <= largest)
    }


def as_record(alarm: Alarm, time: float) -> dict:
    """The alarm as a line of alarms.jsonl."""
    return {"time": time, **asdict(alarm)}


class Figures:
    """Means of metrics over a few records. The Figures for the end of a run also hold all validations."""

    def __init__(self, records: list[dict], validations: list[dict] = ()):
        self.records, self.validations = records, list(validations)
        self.step = records[-1]["step"] if records else 0

    def values(self, metric: str) -> list[float]:
        """The values of the records that have the metric, without nulls."""
        values = [record[metric] for record in self.records if metric in record]
        return [value for value in values if value is not None]

    def mean(self, metric: str) -> float | None:
        """The mean over the finite values of a metric; None without such values."""
        values = [value for value in self.values(metric) if math.isfinite(value)]
        return sum(values) / len(values) if values else None

    def all_beyond(self, metric: str, beyond) -> float | None:
        """The mean, if at least RECENT records have the metric and `beyond` is true for all their values; else None."""
        values = self.values(metric)
        return self.mean(metric) if len(values) >= RECENT and all(map(beyond, values)) else None


@rule()
def not_finite(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """Any metric is NaN or infinite."""
    for record in now.records:
        bad = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
        if bad:
            return Alarm(
                "not_finite",
                record["step"],
                "Not a number",
                f"{', '.join(bad[:3])} became NaN or infinite: from here on the weights are probably useless.",
                "Go back to the last checkpoint with a lower learning rate, and look at the samples of this step.",
            )
    return None


BY_PROGRAM = "train_rollouts/judged_by_program"  # fraction of responses; older runs do not log this metric


def of_model_rewards(rule: Rule) -> Rule:
    """Disable a rule when programs judge every response.

    On a task with a single right answer, a good policy is far from the reference and has little entropy.
    """

    def judge(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
        return None if now.mean(BY_PROGRAM) == 1 else rule.judge(start, now, limits)

    return Rule(rule.name, (*rule.reads, BY_PROGRAM), judge)


KL_COEF = "train_rollouts/kl_coef"  # logged unless the objective has no KL


def _more_kl(now: Figures) -> str:
    """What keeps the policy nearer to its reference: a stronger KL penalty, or a first one."""
    if now.values(KL_COEF):
        return "raise initial_policy_kl_penalty"
    return "set model.grpo.kl=k3 and initial_policy_kl_penalty (this objective has no KL)"


@of_model_rewards
@rule("train_rollouts/kl", KL_COEF)
def kl(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The KL is above its limit in all of the last records."""
    kl = now.all_beyond("train_rollouts/kl", lambda value: value > limits.kl)
    if kl is None:
        return None
    cure = _more_kl(now)
    return Alarm(
        "kl",
        now.step,
        "Far from the reference",
        f"In the last {RECENT} steps the policy was {kl:.2f} nats a token from its reference on average, beyond {limits.kl:g}: it may "
        "write texts that the reward was never made for.",
        f"{cure[0].upper()}{cure[1:]}, or lower the actor's learning rate.",
    )


@of_model_rewards
@rule(
    "train_rollouts/rewards",
    "train_rollouts/rewards_std",
    "train_rollouts/generation_length",
    "train_rollouts/kl",
    KL_COEF,
)
def reward_hacking(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The reward rose while length and KL changed far beyond their limits."""

    def change(metric: str) -> float:
        before, after = start.mean(f"train_rollouts/{metric}"), now.mean(f"train_rollouts/{metric}")
        return after - before if before is not None and after is not None else 0.0

    spread = start.mean("train_rollouts/rewards_std") or 1.0
    kl = now.mean("train_rollouts/kl") or 0.0
    length = start.mean("train_rollouts/generation_length") or 1.0
    drift = change("generation_length") / length
    if change("rewards") < limits.reward_rise * spread or kl < limits.kl or abs(drift) < limits.length_drift:
        return None
    return Alarm(
        "reward_hacking",
        now.step,
        "Reward hacking?",
        f"In the last {RECENT} steps, on average, the reward was {change('rewards'):.2f} higher than at the start, responses "
        f"{abs(drift):.0%} {'longer' if drift > 0 else 'shorter'} and the KL {kl:.2f}: the policy may win the reward "
        "without being better. Read its responses.",
        f"Stop; {_more_kl(now)} and start again from an earlier checkpoint.",
    )


@rule(*good_fall.METRICS, KL_COEF)
def good_falls(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The fraction of good responses fell while the reward rose."""
    change = good_fall.good_fall(start.records, now.records)
    if change is None or change.rise < limits.good_reward_rise:
        return None
    if change.fall < limits.good_fall or change.errors < limits.good_errors:
        return None
    return Alarm(
        "good_falls",
        now.step,
        "Good responses become rarer",
        f"Since the start the reward rose by {change.rise:.2f} of its standard deviation, but the share of good responses fell by "
        f"{change.fall:.2f} ({change.errors:.1f} standard errors): the policy fools its reward. Read the responses.",
        f"Stop. Train the reward model on pairs whose rejected responses are like these, or {_more_kl(now)}, and "
        "start again from an earlier checkpoint.",
    )


@rule("train_rollouts/copied_from_prompt", KL_COEF)
def copies_prompt(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The fraction of words copied from the prompt is above its limit and has risen."""
    metric = "train_rollouts/copied_from_prompt"
    before, copied = start.mean(metric), now.mean(metric)
    if before is None or len(now.values(metric)) < RECENT:
        return None
    if copied <= limits.copied or copied < before + limits.copied_rise:
        return None
    return Alarm(
        "copies_prompt",
        now.step,
        "Responses copy the prompt",
        f"In the last {RECENT} steps {copied:.0%} of a response's words were copied from its prompt, {before:.0%} at the start: "
        "the judge may take the words of the instruction for an answer. Read the responses.",
        f"Stop. Train the reward model on pairs whose rejected response repeats the instruction, or {_more_kl(now)}, "
        "and start again from an earlier checkpoint.",
    )


@rule("train/loss", VALIDATED)
def overfitting(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The last two validation losses are above the lowest validation loss, and the training losses of the same two validations
    are below the training loss of the lowest.

    A validation's training loss is the mean since the validation before, because the loss of a single batch is noisy.
    """
    validations = now.validations
    losses = [record[VALIDATED] for record in validations]
    if len(losses) < 3:
        return None
    best = min(range(len(losses)), key=losses.__getitem__)
    # the validation before step 1 has no training loss
    then, before, train = (validations[i].get("train/loss", start.mean("train/loss")) for i in (best, -2, -1))
    rise = limits.overfitting * abs(losses[best])  # robust DPO has negative losses
    risen = best < len(losses) - 2 and min(losses[-2:]) > losses[best] + rise
    if then is None or not risen or not max(before, train) <= then - limits.overfitting * abs(then):
        return None
    return Alarm(
        "overfitting",
        now.step,
        "Overfitting",
        f"The validation loss rose from {losses[best]:.2f} at step {validations[best]['step']} to {losses[-1]:.2f}, while "
        f"the training loss fell from {then:.2f} to {train:.2f}: the model memorises its samples.",
        "Stop, and go on from a checkpoint of about that step: fewer steps or epochs, more data, or a lower learning rate.",
    )


@of_model_rewards
@rule("train_rollouts/entropy", KL_COEF)
def entropy(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The entropy fell below a fraction of its value at the start."""
    before = start.mean("train_rollouts/entropy")
    if not before:
        return None
    entropy = now.all_beyond("train_rollouts/entropy", lambda value: value < limits.entropy * before)
    if entropy is None:
        return None
    return Alarm(
        "entropy",
        now.step,
        "Entropy collapse",
        f"The entropy fell from {before:.2f} to {entropy:.2f} nats a token: the policy gives nearly the same response "
        "every time and no longer explores.",
        f"If the reward is as high as it can get, this is success. Else raise entropy_bonus, {_more_kl(now)}, or lower the "
        "learning rate.",
    )


@rule("train_optim/clip_fraction")
def clip_fraction(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """Too many ratios are clipped."""
    share = now.all_beyond("train_optim/clip_fraction", lambda value: value > limits.clip_fraction)
    if share is None:
        return None
    return Alarm(
        "clip_fraction",
        now.step,
        "Steps too large",
        f"{share:.0%} of the tokens' ratios are clipped: the policy moves further in one rollout than the objective allows.",
        "Lower the actor's learning rate, or take fewer optimiser steps a rollout (a larger model.global_batch_size).",
    )


@rule("train_optim/first_ppo_ratio")
def first_ratio(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The ratio is not 1 before the first update."""
    ratio = now.mean("train_optim/first_ppo_ratio")
    if ratio is None or abs(ratio - 1) <= limits.first_ratio:
        return None
    return Alarm(
        "first_ratio",
        now.step,
        "Ratio off 1 before the first update",
        f"The ratio begins at {ratio:.3f} and not at 1: the log-probabilities of rollout and training differ for the same tokens "
        "and weights, so every gradient is biased.",
        "If top_k, top_p, use_greedy or min_length cut the sampler, set recompute_logprobs to null or True. Else compare the "
        "precision and the masks of the two passes; don't tune anything else before.",
    )


@rule("train_rollouts/fraction_of_samples_properly_ended")
def endless(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """Few responses end with a stop token or an end string, and the fraction is not rising."""
    metric = "train_rollouts/fraction_of_samples_properly_ended"
    share = now.all_beyond(metric, lambda value: value < limits.finished)
    is_start = now.step - start.step < RECENT
    if share is None or is_start or share >= (start.mean(metric) or 0.0) + RISING:
        return None
    return Alarm(
        "endless",
        now.step,
        "Responses don't end",
        f"Only {share:.0%} of the responses end by themselves; the others are cut off and judged as they are.",
        "Raise length_params.max_length or missing_eos_penalty (distillation ignores the penalty), or check the end strings.",
    )


_WHY = "since the reward raised an error, hung, died or was NaN"
_READ_FAILURES = (
    "Read environment_failures.txt in the run folder, which has the first traceback of each reason"
)
NO_REWARD = f"no response has a reward, {_WHY}. {_READ_FAILURES}."


@rule("train_rollouts/rewards_failed", "val_rollouts/rewards_failed")
def rewards_failed(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """Every response of the last step or validation lacks a reward, or too many responses lack a reward in all of the last
    records."""
    shares = now.values("train_rollouts/rewards_failed")
    share = now.all_beyond("train_rollouts/rewards_failed", lambda value: value > limits.rewards_failed)
    if shares and shares[-1] == 1:
        share = 1.0
    if share is not None:
        meaning = f"{share:.0%} of the responses have no reward, {_WHY}: the policy learns nothing from them."
    elif now.values("val_rollouts/rewards_failed")[-1:] == [1]:
        meaning = (
            f"No response of the last validation has a reward, {_WHY}: the held-out reward is not known."
        )
    else:
        return None
    control = f"{_READ_FAILURES}; repair the reward, or raise the environment's timeout."
    return Alarm("rewards_failed", now.step, "Rewards fail", meaning, control)


@rule("train_rollouts/groups_alike", "train_rollouts/rewards")
def groups_alike(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The rewards are equal in nearly all groups."""
    share = now.all_beyond("train_rollouts/groups_alike", lambda value: value > limits.groups_alike)
    if share is None:
        return None
    reward = now.mean("train_rollouts/rewards") or 0.0
    return Alarm(
        "groups_alike",
        now.step,
        "Groups are alike",
        f"In {share:.0%} of the groups all rewards are equal (their mean is {reward:.2f}): there is nothing to compare, so "
        "the policy learns almost nothing.",
        "Give tasks that the policy solves sometimes (easier or harder ones), draw more responses to each prompt, or raise "
        "the temperature; check that the reward distinguishes good from bad responses.",
    )
