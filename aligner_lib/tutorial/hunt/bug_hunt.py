"""The bug hunt of notebook 10: ten recorded runs with a fault each, and where it shows.

The runs are numbered, and say nothing of their faults: neither in their settings, nor in their names. What is told of them
is read from the recordings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aligner_lib.tutorial.hunt.faults import FAULTS
from aligner_lib.tutorial.quiz.quiz_file import Choice, Question, QuizFile

# of all runs of the hunt, beside the smoke profile's: long enough to see, and nothing that ends a run that goes wrong
SETTINGS = {
    "trainer.ppo.max_steps": 20,
    "trainer.ppo.val_check_interval": 5,
    "trainer.ppo.max_init_policy_kl": None,
}
HEALTHY = {
    "hunt-healthy-1": 1234,
    "hunt-healthy-2": 4321,
}  # recording → seed; the first one's is the hunted runs' too
ORDER = random.Random(10).sample(sorted(FAULTS), len(FAULTS))  # of the numbered runs' faults
HUNTED = {f"hunt-{number:02d}": fault for number, fault in enumerate(ORDER, 1)}  # recording → fault


@dataclass(frozen=True)
class Evidence:
    """Where a fault shows: a figure that is not as in the healthy run of the same steps."""

    metric: str
    apart: Callable[[float, float], bool]  # the run's figure and the healthy run's at the same step
    why: str

    def first(self, run: Sequence[dict], healthy: Sequence[dict]) -> tuple[int, float, float]:
        """The first step at which the two runs' metrics records are apart, with both figures. Raises ValueError for none."""
        for now, usual in zip(run, healthy):
            if (
                self.metric in now
                and self.metric in usual
                and self.apart(now[self.metric], usual[self.metric])
            ):
                return now["step"], now[self.metric], usual[self.metric]
        raise ValueError(f"{self.metric} is nowhere apart from the healthy run's")

    def told(self, run: Sequence[dict], healthy: Sequence[dict]) -> str:
        """The evidence in a run, in words."""
        step, value, usual = self.first(run, healthy)
        return (
            f"At step {step} `{self.metric}` is {value:.3g}, and {usual:.3g} in the healthy run. {self.why}"
        )


def question(recording: str, run: Sequence[dict], healthy: Sequence[dict]) -> QuizFile:
    """What is wrong with a run? As a quiz of one question, whose choices are all faults, in the same order for each run.

    run, healthy: metrics records, of the recording and of HEALTHY's first.
    """
    fault, number = HUNTED[recording], recording.rpartition("-")[2]
    wrong = [name for name in FAULTS if name != fault]
    choices = [Choice(0, FAULTS[fault].title, EVIDENCE[fault].told(run, healthy))]
    choices += [
        Choice(place, FAULTS[name].title, f"Then `{EVIDENCE[name].metric}` would tell. {EVIDENCE[name].why}")
        for place, name in enumerate(wrong, 1)
    ]
    asked = InOrder(recording, f"What is wrong with run {int(number)}?", tuple(choices))
    return QuizFile("10", f"run {int(number)}", (), (asked,))


def first_difference(run, other) -> str:
    """The first figure that two runs of the same steps do not share to the last digit; empty where they share all.

    run, other: run folders or recordings. Seconds are left out.
    """
    pairs = zip(run.metrics(), other.metrics(), strict=True)
    for one, two in pairs:
        for name in one:
            if name.startswith(("time", "timers/")) or one[name] == two.get(name):
                continue
            return f"at step {one['step']} {name} is {one[name]} and {two.get(name)}"
    return ""


class InOrder(Question):
    """A question with the choices in one order for all."""

    def shuffled(self, seed: int) -> list[Choice]:
        return sorted(self.choices, key=lambda choice: choice.text)


# ---- where they show ------------------------------------------------------------------------------------------------

CHARTS = [  # that a hunter looks at, beside a run's completions
    ["train_rollouts/rewards", "train_rollouts/rlhf_rewards"],
    "val_rollouts/rewards",
    "train_rollouts/kl",
    "train_rollouts/fraction_of_samples_properly_ended",
    "train_rollouts/generation_length",
    "train_rollouts/entropy",
    "train_optim/first_ppo_ratio",
    "train_optim/loss",
    "train_rollouts/sampler_mismatch",
    "train_rollouts/returns_mean",
    "train_optim/lr",
    "train_optim/grad_norm",
]
EVIDENCE: Mapping[str, Evidence] = {
    "kl_sign": Evidence(
        "train_rollouts/rlhf_rewards",
        lambda value, usual: value > usual + 0.3,
        "It has the KL penalty in it, and lies above `rewards`: no penalty does that. Distance from the reference is paid "
        "for, so the KL runs away, to 6 nats a token, and the reward stops rising.",
    ),
    "mask_shift": Evidence(
        "train_optim/first_ppo_ratio",
        lambda value, usual: abs(value - 1) > 0.01,
        "Before the first update of a step, policy and rollout are the same, and the ratio is 1 for every token. It is not: the "
        "loss reads tokens behind the response, of which the rollout has no log-probabilities.",
    ),
    "stop_token": Evidence(
        "train_rollouts/fraction_of_samples_properly_ended",
        lambda value, usual: value < usual - 0.25,
        "Responses that end are rewarded, and the healthy run learns to end them within five steps. Here fewer end at "
        "first, and late, while the reward rises: the token that ends them is in no loss.",
    ),
    "padding": Evidence(
        "train_optim/loss",
        lambda value, usual: abs(value) > 0.05,
        "With a ratio of 1 the loss is minus the mean of the normalised advantages, which is 0 by construction. It is "
        "not: their mean was taken over other tokens than the loss's. The gradient norm is twice as large for the same reason.",
    ),
    "moving_reference": Evidence(
        "train_rollouts/kl",
        lambda value, usual: value == 0 and usual > 0.05,
        "The KL is exactly 0 in all steps, while lengths and rewards show that the policy moves: what it is compared with "
        "moves along. There is no leash.",
    ),
    "temperature": Evidence(
        "train_rollouts/sampler_mismatch",
        lambda value, usual: value > 0.1,
        "Before anything is trained, generation and training find the same tokens differently likely, with the same "
        "weights. It does not grow: the two compute another distribution, not another policy.",
    ),
    "reward_token": Evidence(
        "train_rollouts/returns_mean",
        lambda value, usual: value < usual / 2,
        "The returns are far below the rewards, and keep away from them. A reward at the end is ahead of every token; "
        "here it is ahead of the first alone, and in the completions the first token has all of the advantage.",
    ),
    "stale_rollouts": Evidence(
        "train_rollouts/sampler_mismatch",
        lambda value, usual: value > 0.1,
        "0 at step 1, then it grows with every update, and the KL of these responses is below 0: they are not this "
        "policy's. The validation gives the same figure to the last digit each time.",
    ),
    "learning_rate": Evidence(
        "train_optim/lr",
        lambda value, usual: value > 10 * usual,
        "The rate that was used is not the one in the settings. One update takes the policy nats away from the reference, "
        "the entropy collapses, and the run never comes back.",
    ),
    "reward_scale": Evidence(
        "val_rollouts/rewards",
        lambda value, usual: value > 5 * usual,
        "Before any training, the same responses have rewards ten times as large. The KL penalty, which is not, weighs a "
        "tenth beside them, and the critic begins in other units.",
    ),
}
