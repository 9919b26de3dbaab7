"""Over-optimisation of a reward model: the proxy reward and the gold score against the KL from the initial policy.

A reward model is only a proxy for good answers. If a policy is optimised too far, the proxy reward still rises while the gold
score falls (Gao et al. 2022, arXiv:2210.10760). Best-of-n sampling has the same effect without training. The gold score here
comes from a program that checks the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, log

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.good_answers import good_and_parts
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate, mean_interval, share

Answers = list[dict]  # records of rollouts.jsonl


@dataclass(frozen=True)
class Point:
    """The metrics of a policy on held-out prompts."""

    name: str
    kl: Estimate
    """KL from the initial policy, in nats per response."""
    reward: Estimate
    """The proxy reward."""
    obeys: Estimate
    """The gold score: the share of answers in the form that the prompt asks for."""
    ended: Estimate
    """The share of answers that ended with a stop token."""
    tokens: Estimate
    """The length of an answer."""


def ppo_points(run: RunFolder) -> list[Point]:
    """The policy of a PPO run at each validation, including the validation before the first step.

    The KL is measured on answers to training prompts: on the rollout of the following step, because the validated policy wrote
    those answers. Before the first step, the KL is therefore exactly 0. After the last step there is no further rollout. The
    last step's rollout is used instead, which comes from the policy one update earlier.
    """
    answers = _by_step(run)
    return [
        _point(f"step {step}", _kl(answers, step), [[record] for record in held_out])
        for (split, step), held_out in answers.items()
        if split == "validation"
    ]


def best_of_n_points(evaluation: RunFolder, sizes: Sequence[int] = (1, 2, 4, 8, 16)) -> list[Point]:
    """The best-of-n policy for each n of `sizes`: the policy samples n answers, and returns the answer with the highest reward.

    evaluation: a run of `aligner evaluate` with at least max(sizes) answers to each prompt. The metrics are averages over all
    subsets of n answers. `kl` is the upper bound log n − (n − 1)/n (Beirami et al. 2024, arXiv:2401.01879).
    Raises ValueError for too few answers.
    """
    prompts: dict[int, Answers] = {}
    for record in evaluation.rollouts():
        if record["reward"] is not None:
            prompts.setdefault(record["group"], []).append(record)
    drawn = list(prompts.values())
    if (least := min(map(len, drawn), default=0)) < max(sizes):
        raise ValueError(
            f"{evaluation.name} has a prompt with only {least} answers with a reward, too few for best of {max(sizes)}. Set "
            f"evaluation.num_generations_per_prompt={max(sizes)} or more, or compare at most best of {least}"
        )
    bounds = [log(n) - (n - 1) / n for n in sizes]
    return [
        _point(f"best of {n}", Estimate(bound, bound, bound), drawn, n) for n, bound in zip(sizes, bounds)
    ]


def best_of_n_weights(drawn: int, n: int) -> list[float]:
    """The probability that an answer is the best in a random subset of n of the `drawn` answers, from worst to best: [drawn].

    Source: Nakano et al. 2021 (arXiv:2112.09332), appendix I.
    """
    return [comb(worse, n - 1) / comb(drawn, n) for worse in range(drawn)]


def compare_at_step(runs: Mapping[str, RunFolder], step: int | None = None) -> PolicyComparison:
    """A table of PPO runs after the same number of steps, with the common initial policy in the first column.

    step: a step with a validation in every run; None: the last such step. Raises ValueError if the runs have no common step.
    """
    points = {name: {point.name: point for point in ppo_points(run)} for name, run in runs.items()}
    common = [
        name for name in next(iter(points.values())) if all(name in of_one for of_one in points.values())
    ]
    at = common[-1] if step is None else f"step {step}"
    if at not in common or at == "step 0":
        raise ValueError(f"{at}: {', '.join(runs)} were all validated at {', '.join(common)} alone")
    first = next(iter(runs))
    figures = {"SFT": _good(runs[first], 0) | _figures(points[first]["step 0"])}
    for name, run in runs.items():
        alarms = ", ".join(f"{alarm['name']} at step {alarm['step']}" for alarm in run.alarms())
        good = _good(run, int(at.removeprefix("step ")))
        figures[name] = good | _figures(points[name][at]) | {"alarms": alarms or "none"}
    caption = f"held-out prompts after {at.removeprefix('step ')} steps; 95 % intervals in brackets; alarms of the whole run"
    return PolicyComparison(caption, figures)


def _by_step(run: RunFolder) -> dict[tuple[str, int], Answers]:
    """The answers of each split and step, in order."""
    answers: dict[tuple[str, int], Answers] = {}
    for record in run.rollouts():
        answers.setdefault((record["split"], record["step"]), []).append(record)
    return answers


def _kl(answers: dict[tuple[str, int], Answers], step: int) -> Estimate:
    written = answers.get(("train", step + 1)) or answers["train", step]
    return mean_interval(
        [sum(record["token_kl"]) for record in written], [record["group"] for record in written]
    )


def _point(name: str, kl: Estimate, drawn: list[Answers], n: int = 1) -> Point:
    """The metrics of the best of n answers, averaged over all subsets. drawn: all answers to each prompt."""
    prompts = range(len(drawn))
    weights = [best_of_n_weights(len(answers), n) for answers in drawn]
    ordered = [sorted(answers, key=lambda record: record["reward"]) for answers in drawn]

    def expected(value) -> list[float]:
        sums = (
            sum(w * value(record) for w, record in zip(*of_prompt)) for of_prompt in zip(weights, ordered)
        )
        return [
            round(total, 12) for total in sums
        ]  # a share of all answers is exactly 1.0, despite rounding errors

    return Point(
        name,
        kl,
        reward=mean_interval(expected(lambda record: record["reward"]), prompts),
        obeys=share(expected(lambda record: record["metrics"]["obeys"]), prompts),
        ended=share(expected(lambda record: record["finished"]), prompts),
        tokens=mean_interval(expected(lambda record: record["length"]), prompts),
    )


def _good(run: RunFolder, step: int) -> dict[str, Estimate | float]:
    """The share of good answers among the held-out answers of a step, and the share for each part of the judgement."""
    held_out = _by_step(run)["validation", step]
    return good_and_parts(held_out, [record["group"] for record in held_out])


def _figures(point: Point) -> dict[str, Estimate]:
    return {
        "reward": point.reward,
        "obeys": point.obeys,
        "KL, nats per response": point.kl,
        "ended": point.ended,
        "tokens": point.tokens,
    }
