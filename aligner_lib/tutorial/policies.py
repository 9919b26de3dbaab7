"""Policies that answered the same prompts, measured side by side, with what is known of each figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.statistics import (
    Estimate,
    compare,
    distinct_n,
    length_controlled_win_rate,
    mean_interval,
    share,
    win_rate,
)

STYLE = """<style>
.lab-policies {font: 13px/1.5 var(--jp-ui-font-family, system-ui, sans-serif); font-variant-numeric: tabular-nums; border-collapse: collapse}
.lab-policies caption {text-align: left; white-space: nowrap; padding: 2px 8px; opacity: .75}
.lab-policies th, .lab-policies td {text-align: right; white-space: nowrap; padding: 3px 10px; font-weight: 400; border-bottom: 1px solid #8883}
.lab-policies th[scope=col] {font-weight: 600}
.lab-policies th[scope=row] {text-align: left}
</style>"""
Answers = dict[tuple[int, int], dict]  # by prompt, and which of its answers: records of rollouts.jsonl


@dataclass(frozen=True)
class PolicyComparison:
    """A table in a notebook, and figures in Python: `figures["PPO"]["win_rate"].low`, for example.

    Intervals hold the figure in 95 of 100 draws of the prompts (`tutorial/statistics.py`). Rewards and wins are those of
    who judged the evaluations. `win_rate_at_equal_length` is Dubois et al. 2024's; `distinct_2` the share of different
    ones among all pairs of words.
    """

    caption: str
    figures: dict[str, dict[str, Estimate | float]]  # by policy, by measure

    @property
    def rows(self) -> list[list[str]]:
        """The head, then a row for each measure."""
        names = list(dict.fromkeys(name for of_one in self.figures.values() for name in of_one))
        return [["", *self.figures]] + [
            [name.replace("_", " "), *(_shown(of_one.get(name)) for of_one in self.figures.values())]
            for name in names
        ]

    def _repr_html_(self) -> str:
        (_, *policies), *rows = self.rows
        head = "".join(f'<th scope="col">{escape(policy)}</th>' for policy in policies)
        body = "".join(
            f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
            for name, *cells in rows
        )
        table = f"<caption>{escape(self.caption)}</caption><tr><td></td>{head}</tr>{body}"
        return f'{STYLE}<table class="lab-policies">{table}</table>'

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in self.rows]
        return "\n".join([self.caption, *(line.rstrip() for line in lines)])


def compare_policies(
    runs: Mapping[str, RunFolder], against: str, environment: str | None = None
) -> PolicyComparison:
    """Runs of `aligner evaluate` by their policies' names, each measured alone and against one of them.

    environment: only the answers to its prompts count; None: all.
    Answers are compared prompt by prompt, and where a prompt has several, first with first. Answers that have no reward,
    since an environment failed, are left out together with what they would be compared with; the caption counts them.
    Raises ValueError for runs that did not answer the same prompts.
    """
    answers = {name: _answers(run, environment) for name, run in runs.items()}
    asked = {name: (_asked(runs[name]), _prompts(of_one)) for name, of_one in answers.items()}
    for name, own in asked.items():
        if own != asked[against]:
            raise ValueError(
                f"{name} and {against} answered other prompts: evaluate them with the same settings"
            )
    judged = [
        at for at in answers[against] if all(of_one[at]["reward"] is not None for of_one in answers.values())
    ]
    left_out = len(answers[against]) - len(judged)
    figures = {
        name: _alone(of_one, judged) | ({} if name == against else _against(of_one, answers[against], judged))
        for name, of_one in answers.items()
    }
    count = len({prompt for prompt, _ in judged})
    caption = f"{len(judged)} answers to {count} held-out prompts; wins against {against}; in brackets 95 % intervals"
    if left_out:
        caption += f"; {left_out} answers without a reward are left out"
    return PolicyComparison(caption, figures)


def _answers(run: RunFolder, environment: str | None) -> Answers:
    answers: Answers = {}
    counts: dict[int, int] = {}
    for record in run.rollouts():
        if environment is not None and record.get("environment") != environment:
            continue
        prompt = record["group"]
        answers[prompt, counts.setdefault(prompt, 0)] = record
        counts[prompt] += 1
    return answers


def _asked(run: RunFolder) -> list:
    """The settings that say which prompts were answered."""
    model = run.info.get("config", {}).get("model", {})
    return [model.get("environments"), model.get("data", {}).get("data_prefix", {}).get("validation")]


def _prompts(answers: Answers) -> dict[tuple[int, int], str]:
    """An environment's are the same for all, and each policy reads them as its own template writes them."""
    return {at: record.get("environment") or record["prompt"] for at, record in answers.items()}


def _alone(answers: Answers, judged: list[tuple[int, int]]) -> dict[str, Estimate | float]:
    records, prompts = [answers[at] for at in judged], [prompt for prompt, _ in judged]

    def mean(values) -> Estimate:
        return mean_interval([float(value) for value in values], prompts)

    tokens = sum(record["length"] for record in records)
    return {
        "reward": mean(record["reward"] for record in records),
        "kl_per_token": sum(sum(record["token_kl"]) for record in records) / tokens,
        "tokens": mean(record["length"] for record in records),
        "ended": share([float(record["finished"]) for record in records], prompts),
        "distinct_2": distinct_n([record["response"] for record in records], 2),
    }


def _against(own: Answers, others: Answers, judged: list[tuple[int, int]]) -> dict[str, Estimate]:
    prompts = [prompt for prompt, _ in judged]
    rewards, of_others = ([of_one[at]["reward"] for at in judged] for of_one in (own, others))
    wins = compare(rewards, of_others)
    longer_by = [own[at]["length"] - others[at]["length"] for at in judged]
    return {
        "gain": mean_interval([a - b for a, b in zip(rewards, of_others)], prompts),
        "win_rate": win_rate(wins, prompts),
        "win_rate_at_equal_length": length_controlled_win_rate(wins, longer_by, prompts),
    }


def _shown(figure: Estimate | float | None) -> str:
    if figure is None:
        return ""
    return str(figure) if isinstance(figure, Estimate) else f"{figure:.3g}"
