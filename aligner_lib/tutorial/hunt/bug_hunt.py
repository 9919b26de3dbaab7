"""The bug hunt of notebook 10: fifteen recorded runs, and the figure that reveals each fault.

Each of ten runs has a different fault of RECORDED. Two more runs repeat two of these faults with other seeds, another
run has a fault that is in no list, and two runs are healthy. The names of the runs are numbers, and the settings of the runs do
not reveal the faults. The figures in the explanations are read from the recordings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aligner_lib.tutorial.hunt.faults import FAULTS, UNLISTED
from aligner_lib.tutorial.quiz.quiz_file import QuizChoice, QuizFile, QuizQuestion

# All runs of the hunt use the smoke profile with these settings. They have enough steps to reveal a fault, and no KL limit,
# because the limit would end the runs with a large KL early.
SETTINGS = {
    "trainer.ppo.max_steps": 20,
    "trainer.ppo.val_check_interval": 5,
    "trainer.ppo.max_init_policy_kl": None,
}
# recording → seed; most hunted runs have the seed of the first
HEALTHY = {
    "hunt-healthy-1": 1234,
    "hunt-healthy-2": 4321,
}
SEED = HEALTHY["hunt-healthy-1"]
ROUNDING = 1e-4  # two runs with the same seed are at most this far apart until a fault shows
NO_FAULT = ""


@dataclass(frozen=True)
class HuntedRun:
    """The fault of a recording of the hunt."""

    fault: str
    """A name in RECORDED, UNLISTED's name, or NO_FAULT."""
    seed: int = SEED


# Names in place of FAULTS: a fault that is added there has no recording, and would change the order of the recorded runs.
RECORDED = (
    "kl_sign",
    "mask_shift",
    "stop_token",
    "padding",
    "moving_reference",
    "temperature",
    "reward_token",
    "stale_rollouts",
    "learning_rate",
    "reward_scale",
)
_RUNS = [
    *map(HuntedRun, RECORDED),
    HuntedRun("kl_sign", 7),
    HuntedRun("temperature", 8),
    HuntedRun(UNLISTED.name),
    HuntedRun(NO_FAULT, 9),
    HuntedRun(NO_FAULT, 10),
]
ORDER = random.Random(10).sample(_RUNS, len(_RUNS))
HUNTED = {f"hunt-{number:02d}": run for number, run in enumerate(ORDER, 1)}  # recording → its fault


@dataclass(frozen=True)
class FaultEvidence:
    """The metric that reveals a fault, in a comparison with another figure of the same step."""

    metric: str
    apart: Callable[[float, float], bool]
    """Called with the faulty run's figure and the other figure: whether the difference is larger than the noise."""
    why: str
    bound: str = ""
    """The metric of the same run that bounds `metric` by definition. "": the other figure is the healthy run's `metric`."""

    @property
    def other(self) -> str:
        """The other figure in words."""
        return f"in `{self.bound}`" if self.bound else "in the healthy run"

    def figures(self, now: dict, usual: dict) -> tuple[float, float] | None:
        """Both figures of a step; None if a record lacks one. now, usual: records of the run and of the healthy run."""
        name, record = (self.bound, now) if self.bound else (self.metric, usual)
        return (now[self.metric], record[name]) if self.metric in now and name in record else None

    def first(self, run: Sequence[dict], healthy: Sequence[dict]) -> tuple[int, float, float]:
        """The first step at which the metric reveals the fault, the run's figure and the other figure.

        run, healthy: metrics records. Raises ValueError if no step reveals the fault.
        """
        for now, usual in zip(run, healthy):
            figures = self.figures(now, usual)
            if figures and self.apart(*figures):
                return now["step"], *figures
        raise ValueError(f"{self.metric} is nowhere apart from the figure {self.other}")

    def sentence(self, run: Sequence[dict], healthy: Sequence[dict]) -> str:
        """The evidence in a run as a sentence."""
        step, value, usual = self.first(run, healthy)
        return f"At step {step} `{self.metric}` is {value:.3g}, compared with {usual:.3g} {self.other}. {self.why}"


HEALTHY_CHOICE = "nothing: this run is healthy"
UNLISTED_CHOICE = "a fault that is not in this list"
# The same sentence for every wrong fault: what a fault looks like would tell the answer of the run that has it.
NOT_THIS = (
    "This fault does not fit the figures of this run. Look for the first figure that is out of range, if there is one, and ask "
    "which part of PPO computes it."
)
NOT_HEALTHY = (
    "This run has the seed of the first healthy run. Without a fault, both runs would have the same figures in their first steps, "
    "apart from rounding."
)
NOT_HEALTHY_WITH_ANOTHER_SEED = "An exact figure of this run is wrong, and no seed changes an exact figure."
EVIDENCE_IS_NEXT = "The next two questions ask for the figure and the step that show the fault first."
NO_FIGURE, NO_STEP = "no figure: all are within the noise", "at no step"
STEPS = (0, 1, 2, 5, 10, 20)  # answer choices of the question about the first step
WRONG_FIGURES = 4


def question_ids(recording: str) -> tuple[str, str, str]:
    """The ids under which the answers to a run's three questions are stored."""
    return recording, f"{recording}-figure", f"{recording}-step"


def questions(
    recording: str, run: Sequence[dict], healthy: Sequence[dict], other: Sequence[dict]
) -> QuizFile:
    """The three questions about a run: which fault, which figure reveals the fault first, and at which step.

    run, healthy, other: metrics records of the recording and of the two healthy runs. The explanation of a wrong figure or
    step mentions only figures of this run, and all wrong faults have one explanation, so a wrong choice reveals nothing
    about the other runs.
    """
    number = int(recording.rpartition("-")[2])
    of_fault, of_figure, of_step = question_ids(recording)
    hunted = HUNTED[recording]
    evidence_and_step = _evidence_and_step(hunted.fault, run, healthy)
    asked_questions = (
        InOrder(of_fault, f"What is wrong with run {number}?", _faults(recording, run, healthy, other)),
        QuizQuestion(
            of_figure,
            "Which of these figures shows it first?",
            _figures(evidence_and_step, run, healthy, healthy if hunted.seed == SEED else other),
        ),
        InOrder(
            of_step,
            "At which step is this figure out of range first?",
            _steps(evidence_and_step, run, healthy),
        ),
    )
    return QuizFile("10", f"run {number}", (), asked_questions)


def _evidence_and_step(
    fault: str, run: Sequence[dict], healthy: Sequence[dict]
) -> tuple[FaultEvidence, int] | tuple[None, None]:
    if fault == NO_FAULT:
        return None, None
    evidence = EVIDENCE[fault]
    return evidence, evidence.first(run, healthy)[0]


def _faults(
    recording: str, run: Sequence[dict], healthy: Sequence[dict], other: Sequence[dict]
) -> tuple[QuizChoice, ...]:
    fault, seed = HUNTED[recording].fault, HUNTED[recording].seed
    if fault == NO_FAULT:
        right = HEALTHY_CHOICE, f"All exact figures are right. {_noise(run, healthy, other)}"
    elif fault == UNLISTED.name:
        right = UNLISTED_CHOICE, f"The fault: {UNLISTED.title}. {EVIDENCE_IS_NEXT}"
    else:
        right = FAULTS[fault].title, EVIDENCE_IS_NEXT
    wrong = [(FAULTS[name].title, NOT_THIS) for name in RECORDED if name != fault]
    others = {
        HEALTHY_CHOICE: NOT_HEALTHY if seed == SEED else NOT_HEALTHY_WITH_ANOTHER_SEED,
        UNLISTED_CHOICE: "Another choice explains all figures of this run.",
    }
    return _choices(right, wrong + [choice for choice in others.items() if choice[0] != right[0]])


def _noise(run: Sequence[dict], healthy: Sequence[dict], other: Sequence[dict]) -> str:
    """How many figures of a healthy run lie outside of the two healthy runs, and why these figures show no fault."""
    outside = {
        metric: [
            not min(two) <= value <= max(two)
            for value, *two in _together(metric, run, healthy, other)
            if two[0] != two[1]  # else without noise, as the KL at step 1
        ]
        for metric in _charted()
        if metric not in EXACT
    }
    most = max(outside, key=lambda metric: sum(outside[metric]))
    share = sum(map(sum, outside.values())) / sum(map(len, outside.values()))
    return (
        f"{share:.0%} of the other figures lie outside of the two healthy runs, most often `{most}`. Chance alone puts two "
        "thirds there, because each of three healthy runs is equally often in the middle."
    )


def _together(metric: str, *runs: Sequence[dict], until: float = float("inf")) -> list[tuple[float, ...]]:
    """The figures of several runs at each step, at most `until`, at which all runs have the metric."""
    return [
        tuple(record[metric] for record in records)
        for records in zip(*runs)
        if all(metric in record for record in records) and records[0]["step"] <= until
    ]


def _last(
    metric: str, run: Sequence[dict], healthy: Sequence[dict], until: int | None = None
) -> tuple[int, float, float]:
    """The last step, at most `until`, at which both runs have the metric, and both figures."""
    both = [(now, usual) for now, usual in zip(run, healthy) if metric in now and metric in usual]
    now, usual = [records for records in both if until is None or records[0]["step"] <= until][-1]
    return now["step"], now[metric], usual[metric]


def _figures(
    evidence_and_step: tuple, run: Sequence[dict], healthy: Sequence[dict], other: Sequence[dict]
) -> tuple[QuizChoice, ...]:
    evidence, step = evidence_and_step
    names = _evident() if evidence is None else [name for name in _charted() if name != evidence.metric]
    until = run[-1]["step"] if evidence is None else step
    whys = {name: _in_range(name, until, run, healthy, other) for name in names}
    in_range = [(f"`{name}`", why) for name, why in whys.items() if why]
    if evidence is None:
        return _choices(
            (NO_FIGURE, "All exact figures are right, and two healthy runs show only a part of the noise."),
            in_range[:WRONG_FIGURES],
        )
    none = NO_FIGURE, "Compare this run's figures with both healthy runs, step by step: one is out of range."
    right = f"`{evidence.metric}`", evidence.sentence(run, healthy)
    return _choices(right, [*in_range[: WRONG_FIGURES - 1], none])


def _charted() -> list[str]:
    return [name for chart in CHARTS for name in ([chart] if isinstance(chart, str) else chart)]


def _evident() -> list[str]:
    return [*dict.fromkeys(evidence.metric for evidence in EVIDENCE.values())]


def _beside(metric: str, step: int, value: float, usual: float) -> str:
    return f"At step {step} `{metric}` is {value:.3g}, and {usual:.3g} in the healthy run: no more apart than two healthy runs."


def _in_range(
    metric: str, step: int, run: Sequence[dict], healthy: Sequence[dict], other: Sequence[dict]
) -> str:
    """A sentence that says that a metric is in range up to a step; "" if the metric is out of range.

    In range: the distance from the healthy run is at most the largest distance so far between the two healthy runs, apart from
    rounding. other: the healthy run itself for a run with its seed.
    """
    so_far = _together(metric, run, healthy, other, until=step)
    if not so_far:
        return f"`{metric}` is measured after step {step} only, and another figure is out of range there."
    noise = ROUNDING + max(abs(again - usual) for _, usual, again in so_far)
    if any(abs(value - usual) > noise for value, usual, _ in so_far):
        return ""
    return _beside(metric, *_last(metric, run, healthy, step))


def _steps(evidence_and_step: tuple, run: Sequence[dict], healthy: Sequence[dict]) -> tuple[QuizChoice, ...]:
    evidence, first = evidence_and_step
    if evidence is None:
        why_not = (
            "All exact figures of this step are right. The other figures differ as those of another seed do."
        )
        whys = [(f"at step {step}", why_not) for step in STEPS[:4]]
        return _choices((NO_STEP, "There is nothing to find in this run."), whys)
    values = {now["step"]: evidence.figures(now, usual) for now, usual in zip(run, healthy)}

    def why(step: int) -> str:
        if step > first:
            return f"The figure is out of range at step {step}, but not there for the first time."
        if not values.get(step):
            return f"The figure was not measured at step {step}."
        now, usual = values[step]
        return f"At step {step} the figure is {now:.3g}, and {usual:.3g} {evidence.other}. That is in range."

    wrong = [(f"at step {step}", why(step)) for step in STEPS if step != first]
    before = "is the validation before any training" if first == 0 else "is the first that is out of range"
    right = f"at step {first}", f"Step {first} {before}."
    return _choices(right, [*wrong[:4], (NO_STEP, "The figure is out of range somewhere.")])


def _choices(right: tuple[str, str], wrong: Sequence[tuple[str, str]]) -> tuple[QuizChoice, ...]:
    return tuple(QuizChoice(place, text, why) for place, (text, why) in enumerate([right, *wrong]))


def first_difference(run, other) -> str:
    """The first difference between the metrics of two runs, as a sentence; "" if all figures are equal to the last digit.

    run, other: run folders or recordings with the same number of records. Times are not compared. The figure of a run that lacks
    a metric is None.
    """
    pairs = zip(run.metrics(), other.metrics(), strict=True)
    for record, other_record in pairs:
        for name in record | other_record:
            figures = record.get(name), other_record.get(name)
            if not name.startswith(("time", "timers/")) and not _same(*figures):
                return f"at step {record['step']} {name} is {figures[0]} and {figures[1]}"
    return ""


def _same(figure: object, other: object) -> bool:
    return figure == other or (figure != figure and other != other)  # NaN differs from itself


class InOrder(QuizQuestion):
    """A question whose choices have the same order for all runs: faults by name, steps by number, the other choices last."""

    def shuffled(self, seed: int) -> list[QuizChoice]:
        return sorted(self.choices, key=lambda choice: _place(choice.text))


def _place(choice: str) -> tuple[bool, int, str]:
    number = choice.rpartition(" ")[2]
    last = choice in (HEALTHY_CHOICE, UNLISTED_CHOICE, NO_STEP)
    return last, int(number) if number.isdigit() else 0, choice


# ---- the evidence for each fault ------------------------------------------------------------------------------------

CHARTS = [  # shown next to a run's completions
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
# without noise at every step
EXACT = {
    "train_optim/first_ppo_ratio",
    "train_optim/loss",
    "train_rollouts/sampler_mismatch",
    "train_optim/lr",
}
EVIDENCE: Mapping[str, FaultEvidence] = {
    "kl_sign": FaultEvidence(
        "train_rollouts/rlhf_rewards",
        lambda value, rewards: value > rewards + 1e-4,
        "`rlhf_rewards` contains the KL penalty and yet lies above `rewards`, which no penalty can cause. The "
        "policy is rewarded for distance from the reference, so the KL runs away to 6 nats per token, and the "
        "reward stops rising.",
        bound="train_rollouts/rewards",
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
        "Responses that end are rewarded, and the healthy run, which has the same seed, learns to end them within five steps. With "
        "the fault fewer responses end at first, and the share recovers late, while the reward rises: the loss leaves out the "
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
        "token. With the fault the reward lies ahead of the first token only, and from about step 13 on the first token of "
        "a completion has by far the largest advantage, about 16 times another token’s.",
    ),
    "stale_rollouts": FaultEvidence(
        "train_rollouts/sampler_mismatch",
        lambda value, usual: value > 0.1,
        "The mismatch is 0 at step 1 and rises to 7 nats, and the KL of these responses is below 0, "
        "because another policy has drawn them. Each validation gives the same figure to the last digit.",
    ),
    "learning_rate": FaultEvidence(
        "train_optim/lr",
        lambda value, usual: value > 10 * usual,
        "The rate of the optimizer differs from the rate in the settings. A single update moves the policy nats "
        "away from the reference, the entropy collapses, and the run never recovers.",
    ),
    UNLISTED.name: FaultEvidence(
        "val_rollouts/rewards",
        lambda value, usual: abs(value - usual) > ROUNDING,  # its run has the healthy run's seed
        "Both runs have the same seed, so already this difference shows a fault. All exact figures are right, and the policy moves "
        "as far as in the healthy run, but the reward does not rise: at step 10 it is 0.47, compared with 1.1. So the "
        "policy learns, and not from its rewards: the advantages do not belong to the responses beside which they stand.",
    ),
    "reward_scale": FaultEvidence(
        "val_rollouts/rewards",
        lambda value, usual: value > 5 * usual,
        "Before any training, the same responses have rewards ten times as large. The KL penalty is unchanged, "
        "so it has only a tenth of its usual weight, and the critic starts with values on another scale.",
    ),
}
