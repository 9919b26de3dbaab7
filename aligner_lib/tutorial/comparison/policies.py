"""A comparison of policies that answered the same prompts: metrics side by side, with confidence intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.good_answers import good_and_parts, good_answers
from aligner_lib.tutorial.comparison.statistics import (
    Estimate,
    compare,
    distinct_n,
    length_controlled_win_rate,
    mean_interval,
    share,
    share_gain,
    win_rate,
)

STYLE = """<style>
.lab-policies {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); font-variant-numeric: tabular-nums; border-collapse: collapse}
.lab-policies caption {text-align: left; white-space: nowrap; padding: 2px 8px; opacity: .75}
.lab-policies th, .lab-policies td {text-align: right; white-space: nowrap; padding: 3px 10px; font-weight: 400; border-bottom: 1px solid #8883}
.lab-policies th[scope=col] {font-weight: 600}
.lab-policies th[scope=row] {text-align: left}
</style>"""
CHECKED = {"obeys": "obeys", "exact": "right"}
"""By a program's metric of an answer, from 0 to 1: the title in the table. A sum is right if its answer is exact."""
Answers = dict[tuple[int, int], dict]  # (prompt, number of the answer) → record of rollouts.jsonl


def _cell(figure) -> str:
    """A figure as text. A text stays unchanged."""
    return figure if isinstance(figure, str) else _shown(figure)


@dataclass(frozen=True)
class PolicyComparison:
    """The metrics of several policies: a table in a notebook, or in Python `figures["PPO"]["win_rate"].low`, for example.

    A 95 % interval contains the true value in 95 of 100 draws of the prompts (comparison/statistics.py). Rewards and wins come
    from the judge of the evaluation runs. `good` and `obeys` come from a program (data/gold.py), and exist only if the prompts
    ask for something that a program can check. `right` is the share of right sums. `win_rate_at_equal_length` is defined in Dubois et al. 2024. `distinct_2` is
    the share of distinct bigrams among all bigrams of words.
    """

    caption: str
    figures: dict[str, dict[str, Estimate | float | list[float]]]
    """By policy and measure."""

    @property
    def rows(self) -> list[list[str]]:
        """The header row, followed by a row for each measure."""
        names = list(dict.fromkeys(name for of_one in self.figures.values() for name in of_one))
        return [["", *self.figures]] + [
            [name.replace("_", " "), *(_cell(of_one.get(name)) for of_one in self.figures.values())]
            for name in names
        ]

    def _repr_html_(self) -> str:
        (_, *policies), *rows = self.rows
        head = "".join(f'<th scope="col">{escape(policy)}</th>' for policy in policies)
        body = "".join(
            f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
            for name, *cells in rows
        )
        table = f"<caption>{escape(self.caption)}</caption><tr><td></td>{head}</tr>{body}"
        return f'{STYLE}<table class="lab-policies">{table}</table>'

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in self.rows]
        return "\n".join([self.caption, *(line.rstrip() for line in lines)])


def compare_policies(
    runs: Mapping[str, RunFolder | Sequence[RunFolder]], against: str, environment: str | None = None
) -> PolicyComparison:
    """The metrics of each policy, and the comparison of each policy with the policy `against`, from runs of `aligner evaluate`.

    runs: for each policy a run, or a list with a run for each training seed, in the same order for all policies. With a list,
    policies of the same seed are compared with each other, the intervals are over prompts with the seeds fixed, and the table
    shows the reward of each seed.
    environment: count only answers to the prompts of this environment; None: all answers.
    Answers to the same prompt are compared: the first with the first, the second with the second, and so on. An answer without
    a reward, because its environment failed, is left out for all policies. The caption counts the excluded answers.
    The KL is between the distributions that the answers are sampled from, so the table has no KL if the temperatures differ.
    Raises ValueError for runs with different prompts, for two seeds with the same policies, for an unknown `against` or
    `environment`, and without rewards.
    """
    if against not in runs:
        raise ValueError(f"against={against!r} is none of the policies: choose from {', '.join(runs)}")
    seeds = {name: [of_one] if isinstance(of_one, RunFolder) else of_one for name, of_one in runs.items()}
    _refuse_equal_seeds(list(seeds.values()))
    answers = {name: _answers(of_one, environment) for name, of_one in seeds.items()}
    prompts_of = {
        name: ([_prompt_settings(run) for run in seeds[name]], _prompts(of_one))
        for name, of_one in answers.items()
    }
    for name, own in prompts_of.items():
        if own != prompts_of[against]:
            raise ValueError(
                f"{name} and {against} answered different prompts: evaluate both with the same settings, to the end"
            )
    if not answers[against]:
        raise ValueError(_no_answers(seeds[against], against, environment))
    judged = [
        at for at in answers[against] if all(of_one[at]["reward"] is not None for of_one in answers.values())
    ]
    if not judged:
        raise ValueError(
            f"none of the {len(answers[against])} answers has a reward for all of {', '.join(runs)}: read the reasons in "
            "environment_failures.txt of each run, and evaluate again"
        )
    left_out = len(answers[against]) - len(judged)
    number = len(seeds[against])
    figures = {
        name: _alone(of_one, judged)
        | _seed_by_seed(of_one, judged, number)
        | ({} if name == against else _against(of_one, answers[against], judged))
        for name, of_one in answers.items()
    }
    count = len({prompt for prompt, _ in judged})
    of_seeds = f" of {number} training seeds" if number > 1 else ""
    caption = (
        f"{len(judged)} answers{of_seeds} to {count} held-out prompts; wins against {against}; "
        "95 % intervals in brackets"
    )
    if left_out:
        caption += f"; {left_out} answers without a reward are left out"
    temperatures = {name: _temperature(of_one[0]) for name, of_one in seeds.items()}
    if len(set(temperatures.values())) > 1:
        for measures in figures.values():
            del measures["kl_per_token"]
        drawn = ", ".join(f"{name} {temperature}" for name, temperature in temperatures.items())
        caption += f"; no KL, because the answers were drawn at different temperatures ({drawn})"
    return PolicyComparison(caption, figures)


def _answers(runs: Sequence[RunFolder], environment: str | None) -> Answers:
    """The answers of all seeds' runs. The numbers of a prompt's answers continue from run to run.

    A prompt that an evaluation repeats, because its environment has fewer prompts than answers, is a single prompt.
    """
    answers: Answers = {}
    counts: Counter[int] = Counter()
    first: dict[tuple[str | None, str], int] = {}
    for seed, run in enumerate(runs):
        for record in run.rollouts():
            if environment is None or record.get("environment") == environment:
                prompt = first.setdefault((record.get("environment"), record["prompt"]), record["group"])
                if record["prompt"] != answers.get((prompt, 0), record)["prompt"]:
                    raise ValueError(
                        f"{run.path} and {runs[0].path} answered different prompts: evaluate both with the same settings"
                    )
                answers[prompt, counts[prompt]] = record | {"seed": seed}
                counts[prompt] += 1
    return answers


def _refuse_equal_seeds(policies: Sequence[Sequence[RunFolder]]) -> None:
    """Raise ValueError for two training seeds whose policies are all the same: a pooled copy would only narrow the intervals.

    policies: for each policy a run for each seed. Policies that no seed trains, such as the downloaded model, may be the same.
    """
    earlier: dict[tuple, RunFolder] = {}
    for of_seed in zip(*policies):
        weights = tuple((run.info.get("hashes") or {}).get("model") or run.path.resolve() for run in of_seed)
        if weights in earlier:
            raise ValueError(
                f"{earlier[weights].path} and {of_seed[0].path} evaluated the same policies, which count as one training seed: "
                "leave one of the two folders out"
            )
        earlier[weights] = of_seed[0]


def _no_answers(runs: Sequence[RunFolder], name: str, environment: str | None) -> str:
    """Why a policy has no answers."""
    known = {record.get("environment", "no environment") for run in runs for record in run.rollouts()}
    if not known:
        return f"{name} has no answers: evaluate {name} to the end"
    return f"environment={environment!r}: {name} has only answers of {', '.join(sorted(known))}"


def _seed_by_seed(answers: Answers, judged: list[tuple[int, int]], number: int) -> dict[str, list[float]]:
    """The mean reward of each seed's policy; empty for a single seed."""
    if number == 1:
        return {}
    rewards = [
        [answers[at]["reward"] for at in judged if answers[at]["seed"] == seed] for seed in range(number)
    ]
    return {"reward_by_seed": [mean(of_one) for of_one in rewards]}


def _prompt_settings(run: RunFolder) -> list:
    """The settings that select the prompts."""
    model = run.info.get("config", {}).get("model", {})
    return [model.get("environments"), model.get("data", {}).get("data_prefix", {}).get("validation")]


def _temperature(run: RunFolder) -> float:
    """The sampling temperature of the answers, which is also the temperature of the KL."""
    rollouts = run.info.get("config", {}).get("model", {}).get("ppo", {})
    return rollouts.get("sampling_params", {}).get("temperature", 1.0)


def _prompts(answers: Answers) -> dict[tuple[int, int], str]:
    """What must be equal for two policies: the environment's name, or else the prompt.

    The text of an environment's prompt may differ, because each policy has its own chat template.
    """
    return {at: record.get("environment") or record["prompt"] for at, record in answers.items()}


def _alone(answers: Answers, judged: list[tuple[int, int]]) -> dict[str, Estimate | float]:
    records, prompts = [answers[at] for at in judged], [prompt for prompt, _ in judged]

    def interval(values) -> Estimate:
        return mean_interval([float(value) for value in values], prompts)

    tokens = sum(record["length"] for record in records)
    checked = {
        title: share(_of_program(answers, judged, metric), prompts)
        for metric, title in CHECKED.items()
        if _is_checked(answers, judged, metric)
    }
    return (
        good_and_parts(records, prompts)
        | checked
        | {
            "reward": interval(record["reward"] for record in records),
            "kl_per_token": sum(sum(record["token_kl"]) for record in records) / tokens,
            "tokens": interval(record["length"] for record in records),
            "ended": share([float(record["finished"]) for record in records], prompts),
            "distinct_2": distinct_n([record["response"] for record in records], 2),
        }
    )


def _against(own: Answers, others: Answers, judged: list[tuple[int, int]]) -> dict[str, Estimate]:
    prompts = [prompt for prompt, _ in judged]
    rewards, of_others = ([of_one[at]["reward"] for at in judged] for of_one in (own, others))
    wins = compare(rewards, of_others)
    longer_by = [own[at]["length"] - others[at]["length"] for at in judged]
    checked = {}
    for metric, title in CHECKED.items():
        if _is_checked(own, judged, metric) and _is_checked(others, judged, metric):
            both = (_of_program(of_one, judged, metric) for of_one in (own, others))
            checked[f"{title}_gain"] = share_gain([a - b for a, b in zip(*both)], prompts)
    goods = [good_answers([of_one[at] for at in judged]) for of_one in (own, others)]
    if None not in goods:
        checked = {"good_gain": share_gain([a - b for a, b in zip(*goods)], prompts)} | checked
    return checked | {
        "gain": mean_interval([a - b for a, b in zip(rewards, of_others)], prompts),
        "win_rate": win_rate(wins, prompts),
        "win_rate_at_equal_length": length_controlled_win_rate(wins, longer_by, prompts),
    }


def _is_checked(answers: Answers, judged: list[tuple[int, int]], metric: str) -> bool:
    """Whether a program computed the metric of every answer."""
    return all(metric in (answers[at].get("metrics") or {}) for at in judged)


def _of_program(answers: Answers, judged: list[tuple[int, int]], metric: str) -> list[float]:
    return [answers[at]["metrics"][metric] for at in judged]


def _shown(figure: Estimate | float | list[float] | None) -> str:
    if figure is None:
        return ""
    if isinstance(figure, list):
        return ", ".join(f"{value:.3g}" for value in figure)
    return str(figure) if isinstance(figure, Estimate) else f"{figure:.3g}"
