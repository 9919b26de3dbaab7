"""The bug hunt of notebook 10: ten recorded runs with a fault each, and the figure that reveals each fault.

The runs have numbers for names, and their settings do not reveal the faults. The figures in the explanations are read from
the recordings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aligner_lib.tutorial.hunt.faults import FAULTS
from aligner_lib.tutorial.quiz.quiz_file import QuizChoice, QuizFile, QuizQuestion

# settings of all runs of the hunt on top of the smoke profile: enough steps to see a fault, and no limit that ends a bad run
SETTINGS = {
    "trainer.ppo.max_steps": 20,
    "trainer.ppo.val_check_interval": 5,
    "trainer.ppo.max_init_policy_kl": None,
}
# recording → seed; the hunted runs have the seed of the first
HEALTHY = {
    "hunt-healthy-1": 1234,
    "hunt-healthy-2": 4321,
}
ORDER = random.Random(10).sample(sorted(FAULTS), len(FAULTS))  # the faults of runs 1 to 10
HUNTED = {f"hunt-{number:02d}": fault for number, fault in enumerate(ORDER, 1)}  # recording → fault


@dataclass(frozen=True)
class FaultEvidence:
    """The metric that reveals a fault, by comparison with the healthy run at the same step."""

    metric: str
    apart: Callable[[float, float], bool]
    """Whether the faulty run's figure and the healthy run's figure differ more than by noise."""
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

    def sentence(self, run: Sequence[dict], healthy: Sequence[dict]) -> str:
        """The evidence in a run as a sentence."""
        step, value, usual = self.first(run, healthy)
        return f"At step {step} `{self.metric}` is {value:.3g}, compared with {usual:.3g} in the healthy run. {self.why}"


def question(recording: str, run: Sequence[dict], healthy: Sequence[dict]) -> QuizFile:
    """A quiz with a single question: which fault does the run have? The choices are all faults, in the same order for each run.

    run, healthy: metrics records, of the recording and of HEALTHY's first.
    """
    fault, number = HUNTED[recording], recording.rpartition("-")[2]
    wrong = [name for name in FAULTS if name != fault]
    choices = [QuizChoice(0, FAULTS[fault].title, EVIDENCE[fault].sentence(run, healthy))]
    choices += [
        QuizChoice(
            place,
            FAULTS[name].title,
            f"This fault would show in `{EVIDENCE[name].metric}`. {EVIDENCE[name].why}",
        )
        for place, name in enumerate(wrong, 1)
    ]
    shown = InOrder(recording, f"What is wrong with run {int(number)}?", tuple(choices))
    return QuizFile("10", f"run {int(number)}", (), (shown,))


def first_difference(run, other) -> str:
    """A sentence on the first figure in which two runs of the same steps differ, or "" if all figures are equal to the last digit.

    run, other: run folders or recordings. Times are not compared.
    """
    pairs = zip(run.metrics(), other.metrics(), strict=True)
    for record, other_record in pairs:
        for name in record:
            if name.startswith(("time", "timers/")) or record[name] == other_record.get(name):
                continue
            return f"at step {record['step']} {name} is {record[name]} and {other_record.get(name)}"
    return ""


class InOrder(QuizQuestion):
    """A question whose choices have the same order for all seeds."""

    def shuffled(self, seed: int) -> list[QuizChoice]:
        return sorted(self.choices, key=lambda choice: choice.text)


# ---- where they show ------------------------------------------------------------------------------------------------

CHARTS = [  # shown beside a run's completions
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
EVIDENCE: Mapping[str, FaultEvidence] = {
    "kl_sign": FaultEvidence(
        "train_rollouts/rlhf_rewards",
        lambda value, usual: value > usual + 0.3,
        "`rlhf_rewards` contains the KL penalty and yet lies above `rewards`, which no penalty can cause. The "
        "policy is rewarded for distance from the reference, so the KL runs away to 6 nats per token, and the "
        "reward stops rising.",
    ),
    "mask_shift": FaultEvidence(
        "train_optim/first_ppo_ratio",
        lambda value, usual: abs(value - 1) > 0.01,
        "Before the first update of a step, policy and rollout are the same, so the ratio should be 1 for every "
        "token. With the fault the ratio differs from 1, because the loss reads tokens after the response, for which the "
        "rollout has no log-probabilities.",
    ),
    "stop_token": FaultEvidence(
        "train_rollouts/fraction_of_samples_properly_ended",
        lambda value, usual: value < usual - 0.25,
        "Responses that end are rewarded, and the healthy run learns to end them within five steps. With the fault fewer "
        "responses end at first, and the share recovers late, while the reward rises: the loss leaves out the "
        "stop token.",
    ),
    "padding": FaultEvidence(
        "train_optim/loss",
        lambda value, usual: abs(value) > 0.05,
        "With a ratio of 1 the loss is minus the mean of the normalised advantages, which is 0 by construction. "
        "With the fault the loss is not 0, because mean and loss use different tokens. For the same reason the gradient "
        "norm is twice as large.",
    ),
    "moving_reference": FaultEvidence(
        "train_rollouts/kl",
        lambda value, usual: value == 0 and usual > 0.05,
        "The KL is exactly 0 in all steps, while lengths and rewards show that the policy moves. So the "
        "reference must move together with the policy, and no penalty holds the policy back.",
    ),
    "temperature": FaultEvidence(
        "train_rollouts/sampler_mismatch",
        lambda value, usual: value > 0.1,
        "Before any training, generation and training give the same tokens different probabilities, with the "
        "same weights. The difference does not grow, so the two sides compute different distributions of the "
        "same policy.",
    ),
    "reward_token": FaultEvidence(
        "train_rollouts/returns_mean",
        lambda value, usual: value < usual / 2,
        "The returns are far below the rewards, and stay there. A reward at the last token lies ahead of every "
        "token. With the fault the reward lies ahead of the first token only, and in the completions the first token has "
        "the whole advantage.",
    ),
    "stale_rollouts": FaultEvidence(
        "train_rollouts/sampler_mismatch",
        lambda value, usual: value > 0.1,
        "The mismatch is 0 at step 1 and grows with every update, and the KL of these responses is below 0, "
        "because another policy has drawn them. Each validation gives the same figure to the last digit.",
    ),
    "learning_rate": FaultEvidence(
        "train_optim/lr",
        lambda value, usual: value > 10 * usual,
        "The rate of the optimizer differs from the rate in the settings. A single update moves the policy nats "
        "away from the reference, the entropy collapses, and the run never recovers.",
    ),
    "reward_scale": FaultEvidence(
        "val_rollouts/rewards",
        lambda value, usual: value > 5 * usual,
        "Before any training, the same responses have rewards ten times as large. The KL penalty is unchanged, "
        "so it has only a tenth of its usual weight, and the critic starts with values on another scale.",
    ),
}
