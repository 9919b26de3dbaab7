"""What a policy gets for leaving the one that it began as: its judge's reward, and what a program says of its answers.

A reward model is a proxy of what it stands for. Who follows it too far goes on getting more of its reward, and less of what
was wanted (Gao et al. 2022, arXiv:2210.10760). Best of n goes the same way without any training.
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
    """A policy on held-out prompts, and how far it is from the one that it began as."""

    name: str
    kl: Estimate  # nats a response
    reward: Estimate  # the proxy's
    obeys: Estimate  # the gold standard's: share of answers that have the form that they should
    ended: Estimate  # share
    tokens: Estimate  # of an answer


def ppo_points(run: RunFolder) -> list[Point]:
    """A run of PPO at each of its validations, the one before the first step included.

    The KL is that of the next step's answers, to training prompts, which the same policy wrote: exactly 0 at the beginning.
    After the last step there are none, and that step's own, of a policy one update earlier, stand in for them.
    """
    answers = _by_step(run)
    return [
        _point(f"step {step}", _kl(answers, step), [[record] for record in held_out])
        for (split, step), held_out in answers.items()
        if split == "validation"
    ]


def best_of_n_points(evaluation: RunFolder, sizes: Sequence[int] = (1, 2, 4, 8, 16)) -> list[Point]:
    """The policy that draws n answers and gives the one that its judge likes best, for each n of `sizes`.

    evaluation: a run of `aligner evaluate` with at least max(sizes) answers to each prompt, of which every choice of n counts.
    The KL is its bound, log n − (n − 1)/n (Beirami et al. 2024, arXiv:2401.01879). Raises ValueError for too few answers.
    """
    prompts: dict[int, Answers] = {}
    for record in evaluation.rollouts():
        prompts.setdefault(record["group"], []).append(record)
    drawn = list(prompts.values())
    if (least := min(map(len, drawn))) < max(sizes):
        raise ValueError(
            f"{evaluation.name} has a prompt with only {least} answers, too few for best of {max(sizes)}. Set "
            f"evaluation.num_generations_per_prompt={max(sizes)}"
        )
    bounds = [log(n) - (n - 1) / n for n in sizes]
    return [
        _point(f"best of {n}", Estimate(bound, bound, bound), drawn, n) for n, bound in zip(sizes, bounds)
    ]


def best_of_n_weights(drawn: int, n: int) -> list[float]:
    """How likely each of `drawn` answers, from the worst to the best, is the best of n that are picked from them: [drawn].

    Source: Nakano et al. 2021 (arXiv:2112.09332), appendix I.
    """
    return [comb(worse, n - 1) / comb(drawn, n) for worse in range(drawn)]


def compare_at_step(runs: Mapping[str, RunFolder], step: int | None = None) -> PolicyComparison:
    """Runs of PPO side by side after equally many steps, beside the policy that all of them began as.

    step: one that they all were validated at; None: the last such. Raises ValueError where there is none.
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
    """The judge's favourites among n answers; drawn: all answers to each prompt."""
    prompts = range(len(drawn))
    weights = [best_of_n_weights(len(answers), n) for answers in drawn]
    ordered = [sorted(answers, key=lambda record: record["reward"]) for answers in drawn]

    def expected(value) -> list[float]:
        sums = (
            sum(w * value(record) for w, record in zip(*of_prompt)) for of_prompt in zip(weights, ordered)
        )
        return [round(total, 12) for total in sums]  # all of them is 1, and not nearly

    return Point(
        name,
        kl,
        reward=mean_interval(expected(lambda record: record["reward"]), prompts),
        obeys=share(expected(lambda record: record["metrics"]["obeys"]), prompts),
        ended=share(expected(lambda record: record["finished"]), prompts),
        tokens=mean_interval(expected(lambda record: record["length"]), prompts),
    )


def _good(run: RunFolder, step: int) -> dict[str, Estimate | float]:
    """Whether the held-out answers of a step are good, and the parts of that."""
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
