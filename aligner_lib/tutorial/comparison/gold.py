"""A program's judgement of a run's answers before and after training.

The reward model's score can rise although the answers become no better. The program is an independent judge.
"""

from __future__ import annotations

from statistics import fmean

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.good_answers import first_and_last, good_and_parts, good_answers
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import (
    Estimate,
    gain_in_parts,
    mean_interval,
    share,
    share_gain,
)

FORM = "form/"


def before_and_after(run: RunFolder) -> PolicyComparison | None:
    """The shares of good and of obeying answers at the first and at the last validation of a run, and their gains.

    The table also has the parts of the judgement (`data.gold.GoldParts`), the share of obeying answers for each form of
    instruction, and the gain in reward in three parts (`statistics.gain_in_parts`). None for prompts without an instruction
    that a program can check, and for a run with a single validation.
    """
    records = [
        record
        for record in run.rollouts()
        if record["split"] == "validation" and "obeys" in (record.get("metrics") or {})
    ]
    sides = {
        step: {record["group"]: record for record in side} for step, side in first_and_last(records).items()
    }
    if len(sides) < 2:
        return None
    first, last = sides.values()
    prompts = sorted(first.keys() & last.keys())
    return _compared({f"step {step}": [side[at] for at in prompts] for step, side in sides.items()}, prompts)


def gained(before: RunFolder, after: RunFolder) -> PolicyComparison:
    """The table of `before_and_after` for two runs of `aligner evaluate` on the same prompts.

    A program must have checked every answer of both runs.
    """
    first, last = ({record["group"]: record for record in run.rollouts()} for run in (before, after))
    prompts = sorted(first)
    sides = {run.name: [of_one[at] for at in prompts] for run, of_one in ((before, first), (after, last))}
    return _compared(sides, prompts)


def _compared(sides: dict[str, list[dict]], prompts: list[int]) -> PolicyComparison:
    """The table of answers before and after. sides: the records of both, by the column's title."""
    figures = {name: _of_one(side, prompts) for name, side in sides.items()}
    before, after = sides.values()
    of_last = list(figures.values())[-1]
    goods = [good_answers(side) for side in (before, after)]
    if None not in goods:
        of_last["good_gain"] = share_gain([b - a for a, b in zip(*goods)], prompts)
    obeys = [[record["metrics"]["obeys"] for record in side] for side in (before, after)]
    of_last["obeys_gain"] = share_gain([b - a for a, b in zip(*obeys)], prompts)
    rewards, ended = (
        [[record[key] for record in side] for side in (before, after)] for key in ("reward", "finished")
    )
    parts = gain_in_parts(rewards, ended, [[bool(value) for value in side] for side in obeys])
    of_last |= {f"reward gained: {name}": part for name, part in zip(("ended", "gold", "rest"), parts)}
    caption = f"{len(prompts)} held-out prompts with one answer each; 95 % intervals in brackets"
    return PolicyComparison(caption, figures)


def _of_one(side: list[dict], prompts: list[int]) -> dict[str, Estimate | float]:
    figures = good_and_parts(side, prompts) | {
        "obeys": share([record["metrics"]["obeys"] for record in side], prompts),
        "reward": mean_interval([record["reward"] for record in side], prompts),
        "ended": share([float(record["finished"]) for record in side], prompts),
        "tokens": fmean(record["length"] for record in side),
    }
    forms: dict[str, list[float]] = {}
    for record in side:
        for name, value in record["metrics"].items():
            if name.startswith(FORM):
                forms.setdefault(name, []).append(value)
    return figures | {
        f"{name.removeprefix(FORM)} ({len(forms[name])})": fmean(forms[name]) for name in sorted(forms)
    }
