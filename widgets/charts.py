"""Which metrics make which chart, for each kind of run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from widgets.series import Series


@dataclass(frozen=True)
class Line:
    """One line of a chart: the first of `metrics` that the run has."""

    label: str
    metrics: tuple[str, ...]
    minus: str = ""  # a metric to subtract: the margin of two rewards

    def column(self, series: Series) -> tuple[np.ndarray, np.ndarray]:
        """(rows, values); empty when the run has none of the metrics."""
        metric = self.metric(series)
        rows, values = series.column(metric)
        if not self.minus:
            return rows, values
        other_rows, others = series.column(self.minus)
        rows, mine, theirs = np.intersect1d(rows, other_rows, return_indices=True)
        return rows, values[mine] - others[theirs]

    def spread(self, series: Series) -> str:
        """The metric that holds the standard deviation around this one, or an empty string."""
        metric = self.metric(series)
        stem = metric.removesuffix("_mean")
        return stem + "_std" if not self.minus and stem + "_std" in series.metrics else ""

    def metric(self, series: Series) -> str:
        known = series.metrics
        return next((metric for metric in self.metrics if metric in known), self.metrics[0])


@dataclass(frozen=True)
class Chart:
    """A chart: `title`, its lines, and what a healthy run shows in it, in a sentence."""

    title: str
    lines: tuple[Line, ...]
    hint: str = ""
    unit: str = ""
    exact: bool = False  # a schedule, not a measurement: never smoothed


def chart(title: str, *lines: Line | Sequence[str], hint="", unit="", exact=False) -> Chart:
    """chart("Loss", ("train", "train/loss"), …): a line is a label and the metrics to look for, in order.

    It may also be a metric's name alone, or a Line. hint: what a healthy run shows. exact: never smoothed.
    """
    return Chart(title, tuple(map(_as_line, lines)), hint, unit, exact)


def _as_line(line: Line | Sequence[str]) -> Line:
    if isinstance(line, Line):
        return line
    label, *metrics = (line.rpartition("/")[2], line) if isinstance(line, str) else line
    return Line(label, tuple(metrics))


_LOSS = chart(
    "Loss",
    ("train", "train/loss"),
    ("validation", "validation/loss"),
    hint="Falls, steeply at first. Validation that rises while training falls is overfitting.",
    unit="nats",
)
_GRAD_NORM = chart(
    "Gradient norm", ("train", "train/grad_norm", "train_optim/grad_norm"), hint="Steady; spikes are clipped."
)
_LEARNING_RATE = chart("Learning rate", ("train", "train/lr", "train_optim/lr"), exact=True)
_STEP_TIME = chart("Step time", ("train", "train/step_time"), unit="s")

SFT = (_LOSS, _GRAD_NORM, _LEARNING_RATE, _STEP_TIME)

RM = (
    _LOSS,
    chart(
        "Accuracy",
        ("train", "train/acc"),
        ("validation", "validation/acc"),
        hint="How often the chosen answer has the higher reward: 0.5 is guessing, people agree at about 0.7.",
    ),
    chart(
        "Reward margin",
        Line("train", ("train/rewards_chosen_mean",), minus="train/rewards_rejected_mean"),
        Line("validation", ("validation/rewards_chosen_mean",), minus="validation/rewards_rejected_mean"),
        hint="Chosen minus rejected: grows from 0.",
    ),
    chart(
        "Reward",
        ("chosen", "train/rewards_chosen_mean"),
        ("rejected", "train/rewards_rejected_mean"),
        hint="The two part; their common level means nothing.",
    ),
    _GRAD_NORM,
    _LEARNING_RATE,
)

PPO = (
    chart(
        "Reward",
        ("train", "train_rollouts/rewards"),
        ("validation", "val_rollouts/rewards"),
        hint="Rises. If it rises while KL and length run away, the policy is gaming the reward model.",
    ),
    chart(
        "KL to the reference",
        ("train", "train_rollouts/init_policy_kl"),
        hint="0 before the first update, then grows slowly and levels off.",
        unit="nats a token",
    ),
    chart(
        "Response length",
        ("train", "train_rollouts/response_lengths"),
        ("validation", "val_rollouts/response_lengths"),
        hint="Drifts a little. A jump to the limit means that responses no longer end.",
        unit="tokens",
    ),
    chart(
        "Responses that ended",
        ("train", "train_rollouts/fraction_of_samples_properly_ended"),
        ("validation", "val_rollouts/fraction_of_samples_properly_ended"),
        hint="Near 1: only these train the actor.",
    ),
    chart(
        "Probability ratio",
        ("ratio", "train_optim/ppo_ratio"),
        ("clamped", "train_optim/ppo_ratio_clamped"),
        hint="Stays close to 1; exactly 1 before the first update.",
    ),
    chart("Actor loss", ("actor", "train_optim/loss"), hint="Hovers around 0: it is no measure of progress."),
)

BY_KIND = {"sft": SFT, "rm": RM, "ppo": PPO}


def charts_for(series: list[Series], kind: str, wanted: list | None = None) -> list[Chart]:
    """The charts to draw: the wanted ones, or those of the run's kind that the runs have something for.

    `wanted` holds metric names, lists of names (one chart together), or what `chart` makes.
    """
    if wanted is not None:
        return [_as_chart(one) for one in wanted]
    known = {metric for one in series for metric in one.metrics}
    if kind in BY_KIND:
        return [c for c in BY_KIND[kind] if any(m in known for line in c.lines for m in line.metrics)]
    return [_as_chart(metric) for metric in sorted(known) if not metric.startswith("timers/")][:9]


def _as_chart(wanted) -> Chart:
    if isinstance(wanted, Chart):
        return wanted
    if isinstance(wanted, str):
        known = next((c for c in SFT + RM + PPO for line in c.lines if wanted == line.metrics[0]), None)
        return chart(wanted, wanted, hint=known.hint if known else "")
    names = list(wanted)
    return chart(" · ".join(_short(names)), *((name, name) for name in names))


def _short(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[2] for name in names))


# -- timers ---------------------------------------------------------------------------------------------------------

IN_ROLLOUT = ("generate", "logprobs", "init_logprobs", "critic_wait")  # parts of timers/rollout_time
IN_STEP = ("rollout_time", "train_time")  # parts of timers/step_time; validation comes after the step
LABELS = {"init_logprobs": "reference logprobs", "critic_wait": "waiting for the critic"}


def timers(series: Series, records: int = 10) -> list[tuple[str, float]]:
    """Where the time goes: (stage, mean seconds a step) over the last records, and what no timer names."""
    means = {}
    for name in (*IN_ROLLOUT, *IN_STEP, "step_time"):
        _, values = series.column(f"timers/{name}")
        if len(values):
            means[name] = float(values[-records:].mean())
    parts = [(LABELS.get(name, name), means[name]) for name in IN_ROLLOUT if name in means]
    parts += _rest("other rollout", means, "rollout_time", IN_ROLLOUT)
    if "train_time" in means:
        parts.append(("train", means["train_time"]))
    return parts + _rest("other", means, "step_time", IN_STEP) if parts else []


def _rest(label: str, means: dict[str, float], whole: str, parts: tuple[str, ...]) -> list[tuple[str, float]]:
    """What of `whole` its parts leave, when it is worth showing."""
    rest = means.get(whole, 0.0) - sum(means.get(part, 0.0) for part in parts)
    return [(label, rest)] if rest > 0.01 * means.get(whole, 0.0) else []
