"""Alarms: what in a run's metrics asks for a person, what it means, and which setting to change.

Pure functions of records, for whoever has them: the run itself, which writes alarms.jsonl so that a batch job has them
too, and every monitor. Imports no torch.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from aligner_lib.run_folder.reader import STALE_SECONDS

# Records at the start of a run that later ones are compared with: the validation before any training and three steps.
# More, and a run of ten steps has half left its start before that is known.
BASELINE = 4
RISING = 0.1  # by which a share has to have grown since the start to be on its way
RECENT = 3  # last records, which rules judge: most want all of them to agree, as one odd step is no alarm
VALIDATED = "validation/loss"  # marks a record with a validation, of which there are far fewer than steps


@dataclass(frozen=True)
class Thresholds:
    """When an alarm sounds.

    The defaults tell apart what this project ran itself on SmolLM2-135M; docs/widgets.md has those runs' figures.
    """

    kl: float = 0.2  # nats a token from the reference
    reward_rise: float = 0.5  # in standard deviations of the first rewards …
    length_drift: float = 0.2  # … while the length changed by this share, beyond the KL threshold
    entropy: float = 0.3  # share of the entropy at the start
    clip_fraction: float = 0.3
    first_ratio: float = 0.02  # distance from 1 before the first update of a step
    finished: float = 0.5  # share of responses that end by themselves
    groups_alike: float = 0.9  # share of groups whose rewards are all equal
    rewards_failed: float = 0.1  # share of responses without a reward
    overfitting: float = (
        0.1  # rise of the validation loss above its lowest, and fall of the training loss, as shares
    )
    heartbeat_seconds: float = STALE_SECONDS


@dataclass(frozen=True)
class Alarm:
    """One alarm: a name for programs, a title, a sentence on what it means, a sentence on what to do.

    Settings are called by the last part of their names where several kinds of job have them, each in its own group.
    """

    name: str
    step: int
    title: str
    meaning: str
    control: str


@dataclass(frozen=True)
class Rule:
    """Something to watch for. A kind of job names those that fit it."""

    name: str  # its alarm's
    reads: tuple[str, ...]  # metrics
    judge: Callable[[Figures, Figures, Thresholds], Alarm | None]  # of the start and of now

    def __call__(self, start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
        return self.judge(start, now, limits)


def rule(*reads: str) -> Callable[[Callable], Rule]:
    """A decorator: a function (start, now, limits) → Alarm or None, and the metrics that it reads."""
    return lambda judge: Rule(judge.__name__, reads, judge)


def active(
    rules: Iterable[Rule],
    first: list[dict],
    recent: list[dict],
    limits: Thresholds = Thresholds(),
    validations: list[dict] = (),
) -> list[Alarm]:
    """The alarms that hold now.

    first: the run's first records; recent: its last; validations: all that have VALIDATED. Each in order of steps.
    """
    now = Figures(recent[-RECENT:], validations)
    start = Figures(first)
    return [alarm for rule in rules if (alarm := rule(start, now, limits)) is not None]


def is_validation(record: dict) -> bool:
    """Whether a record belongs to the validations that `active` takes."""
    return math.isfinite(record.get(VALIDATED, math.nan))


def metrics_read(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The metrics that the rules read."""
    return tuple(dict.fromkeys(name for rule in rules for name in rule.reads))


def stale(heartbeat_age: float, step: int, limits: Thresholds = Thresholds()) -> Alarm | None:
    """The alarm of a run that should be running but gives no sign of life; only an onlooker can raise it."""
    if heartbeat_age <= limits.heartbeat_seconds:
        return None
    return Alarm(
        "stale_heartbeat",
        step,
        "No sign of life",
        f"The run says that it is running but has written nothing for {heartbeat_age:.0f} s: it hangs, its node is "
        "gone, or the file system is stuck.",
        "Read the job's log; cancel and submit it again to resume from the last checkpoint.",
    )


class Watch:
    """Follow a run record by record: `check` gives the alarms that begin with this one."""

    def __init__(self, rules: Iterable[Rule], limits: Thresholds = Thresholds()):
        self.rules, self.limits = tuple(rules), limits
        self._first: list[dict] = []
        self._recent: deque[dict] = deque(maxlen=RECENT)
        self._validations: list[dict] = []
        self._sounding: set[str] = set()

    def remember(self, records: list[dict]) -> None:
        """Go on after what the run logged before, all of it in order; what sounded then is not new."""
        known = [_numbers(record) for record in (*records[:BASELINE], *records[-RECENT:])]
        self._first, recent = known[: len(records[:BASELINE])], known[len(records[:BASELINE]) :]
        self._recent = deque(recent, maxlen=RECENT)
        self._validations = [record for record in map(_numbers, records) if is_validation(record)]
        self._sounding = {alarm.name for alarm in self._active()}

    def check(self, record: dict) -> list[Alarm]:
        """The alarms that begin with this record."""
        if len(self._first) < BASELINE:
            self._first.append(record)
        self._recent.append(record)
        if is_validation(record):
            self._validations.append(record)
        alarms = self._active()
        new = [alarm for alarm in alarms if alarm.name not in self._sounding]
        self._sounding = {alarm.name for alarm in alarms}
        return new

    def _active(self) -> list[Alarm]:
        return active(self.rules, self._first, list(self._recent), self.limits, self._validations)


def _numbers(record: dict) -> dict:
    """A record as it was logged; a file that was damaged may hold anything."""
    largest = sys.float_info.max
    return {"step": 0} | {
        name: value
        for name, value in record.items()
        if type(value) is float or (type(value) is int and abs(value) <= largest)
    }


def as_record(alarm: Alarm, time: float) -> dict:
    """A line of alarms.jsonl."""
    return {"time": time, **asdict(alarm)}


class Figures:
    """Means of metrics over a few records; with them, of the end of a run, all its validations."""

    def __init__(self, records: list[dict], validations: list[dict] = ()):
        self.records, self.validations = records, list(validations)
        self.step = records[-1]["step"] if records else 0

    def values(self, metric: str) -> list[float]:
        """Of the records that have it, and not null."""
        values = [record[metric] for record in self.records if metric in record]
        return [value for value in values if value is not None]

    def mean(self, metric: str) -> float | None:
        """Over the records that have it, if it is finite."""
        values = [value for value in self.values(metric) if math.isfinite(value)]
        return sum(values) / len(values) if values else None

    def all_beyond(self, metric: str, beyond) -> float | None:
        """The mean, when there are RECENT records with the metric and every one of them is beyond; else None."""
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
                f"{', '.join(bad[:3])} became NaN or infinite: from here on the weights are likely lost.",
                "Go back to the last checkpoint with a lower learning rate, and look at the samples of this step.",
            )
    return None


BY_PROGRAM = "train_rollouts/judged_by_program"  # share of responses; older runs have none


def of_model_rewards(rule: Rule) -> Rule:
    """The same, but silent where programs judge every response: a task with one right answer ends far from the reference,
    with little entropy, and that is no fault."""

    def judge(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
        return None if now.mean(BY_PROGRAM) == 1 else rule.judge(start, now, limits)

    return Rule(rule.name, (*rule.reads, BY_PROGRAM), judge)


@of_model_rewards
@rule("train_rollouts/kl")
def kl(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The KL is beyond its limit in all of the last records."""
    kl = now.all_beyond("train_rollouts/kl", lambda value: value > limits.kl)
    if kl is None:
        return None
    return Alarm(
        "kl",
        now.step,
        "Far from the reference",
        f"In the last {RECENT} steps the policy was {kl:.2f} nats a token from its reference on average, beyond {limits.kl:g}: it may "
        "write what the reward was never made for.",
        "Raise initial_policy_kl_penalty, or lower the actor's learning rate.",
    )


@of_model_rewards
@rule(
    "train_rollouts/rewards",
    "train_rollouts/rewards_std",
    "train_rollouts/generation_length",
    "train_rollouts/kl",
)
def reward_hacking(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The reward rose while length and KL ran away."""

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
        "Stop; raise initial_policy_kl_penalty and start again from an earlier checkpoint.",
    )


@rule("train/loss", VALIDATED)
def overfitting(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The last two validation losses are above the lowest one, while the training loss fell on."""
    validations = now.validations
    losses = [record[VALIDATED] for record in validations]
    train = now.mean("train/loss")
    if len(losses) < 3 or train is None:
        return None
    best = min(range(len(losses)), key=losses.__getitem__)
    then = validations[best].get(
        "train/loss", start.mean("train/loss")
    )  # the validation before step 1 has none
    risen = best < len(losses) - 2 and min(losses[-2:]) > (1 + limits.overfitting) * losses[best]
    if then is None or not risen or train > (1 - limits.overfitting) * then:
        return None
    return Alarm(
        "overfitting",
        now.step,
        "Overfitting",
        f"The validation loss rose from {losses[best]:.2f} at step {validations[best]['step']} to {losses[-1]:.2f}, while "
        f"the training loss fell from {then:.2f} to {train:.2f}: the model learns its samples by heart.",
        "Stop, and go on from a checkpoint of about that step: fewer steps or epochs, more data, or a lower learning rate.",
    )


@of_model_rewards
@rule("train_rollouts/entropy")
def entropy(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The entropy fell below a share of its start."""
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
        f"The entropy fell from {before:.2f} to {entropy:.2f} nats a token: the policy says nearly the same thing "
        "every time and no longer explores.",
        "If the reward is as good as it can get, this is success. Else raise entropy_bonus or initial_policy_kl_penalty, or "
        "lower the learning rate.",
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
        f"{share:.0%} of the tokens' ratios are clipped: the policy moves further in one rollout than the objective trusts.",
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
        f"The ratio begins at {ratio:.3f} and not at 1: the rollout's log-probabilities and training's differ for the "
        "same tokens and weights, so every gradient is biased.",
        "If top_k, top_p, use_greedy or min_length cut the sampler, set recompute_logprobs to null or True. Else compare the "
        "two passes' precision and masks; don't tune anything else before.",
    )


@rule("train_rollouts/fraction_of_samples_properly_ended")
def endless(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """Few responses end by themselves, and no more than at the start: a policy that learns to end is left alone."""
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
        "Raise length_params.max_length or missing_eos_penalty, or check the end strings.",
    )


_WHY = "since the reward raised an error, hung, died or was NaN"
_READ_FAILURES = "Read environment_failures.txt in the run folder, which has the first traceback"
NO_REWARD = f"no response has a reward, {_WHY}. {_READ_FAILURES}."


@rule("train_rollouts/rewards_failed", "val_rollouts/rewards_failed")
def rewards_failed(start: Figures, now: Figures, limits: Thresholds) -> Alarm | None:
    """The last step's or validation's responses have no reward at all, or those of the last records too often."""
    shares = now.values("train_rollouts/rewards_failed")
    share = now.all_beyond("train_rollouts/rewards_failed", lambda value: value > limits.rewards_failed)
    if shares and shares[-1] == 1:
        share = 1.0
    if share is not None:
        meaning = f"{share:.0%} of the responses have no reward, {_WHY}: nothing is learnt from them."
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
    """Nearly all groups have equal rewards."""
    share = now.all_beyond("train_rollouts/groups_alike", lambda value: value > limits.groups_alike)
    if share is None:
        return None
    reward = now.mean("train_rollouts/rewards") or 0.0
    return Alarm(
        "groups_alike",
        now.step,
        "Groups are alike",
        f"In {share:.0%} of the groups all rewards are equal (their mean is {reward:.2f}): there is nothing to compare, so "
        "next to nothing is learnt.",
        "Give tasks that the policy solves sometimes (easier or harder ones), draw more responses to each prompt, or raise "
        "the temperature; check that the reward tells good from bad.",
    )
