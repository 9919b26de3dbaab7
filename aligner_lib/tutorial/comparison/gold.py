"""What a program says of a run's answers, before and after: did it become better at what was asked, or at pleasing its judge?"""

from __future__ import annotations

from statistics import fmean

from aligner_lib.run_folder.reader import RunFolder
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
    """The first and the last validation of a run: the share of answers that obey, its gain, and form by form.

    The gain in reward stands there in parts (`tutorial.statistics.gain_in_parts`), too. None where the prompts ask for
    nothing that a program can check, or where there was one validation only.
    """
    records = [
        one
        for one in run.rollouts()
        if one["split"] == "validation" and "obeys" in (one.get("metrics") or {})
    ]
    steps = sorted({one["step"] for one in records})
    if len(steps) < 2:
        return None
    first, last = (
        {one["group"]: one for one in records if one["step"] == step} for step in (steps[0], steps[-1])
    )
    prompts = sorted(first.keys() & last.keys())
    sides = {
        f"step {steps[0]}": [first[at] for at in prompts],
        f"step {steps[-1]}": [last[at] for at in prompts],
    }
    return _compared(sides, prompts)


def gained(before: RunFolder, after: RunFolder) -> PolicyComparison:
    """The same of two runs of `aligner evaluate` on the same prompts, whose every answer was checked by a program."""
    first, last = ({one["group"]: one for one in run.rollouts()} for run in (before, after))
    prompts = sorted(first)
    sides = {run.name: [of_one[at] for at in prompts] for run, of_one in ((before, first), (after, last))}
    return _compared(sides, prompts)


def _compared(sides: dict[str, list[dict]], prompts: list[int]) -> PolicyComparison:
    """Answers before and after, by what the columns are called."""
    figures = {name: _of_one(side, prompts) for name, side in sides.items()}
    before, after = sides.values()
    of_last = list(figures.values())[-1]
    obeys = [[one["metrics"]["obeys"] for one in side] for side in (before, after)]
    of_last["obeys_gain"] = share_gain([b - a for a, b in zip(*obeys)], prompts)
    rewards, ended = (
        [[one[key] for one in side] for side in (before, after)] for key in ("reward", "finished")
    )
    parts = gain_in_parts(rewards, ended, [[bool(one) for one in side] for side in obeys])
    of_last |= {f"reward gained: {name}": part for name, part in zip(("ended", "gold", "rest"), parts)}
    caption = f"{len(prompts)} answers to as many held-out prompts; in brackets 95 % intervals"
    return PolicyComparison(caption, figures)


def _of_one(side: list[dict], prompts: list[int]) -> dict[str, Estimate | float]:
    figures = {
        "obeys": share([one["metrics"]["obeys"] for one in side], prompts),
        "reward": mean_interval([one["reward"] for one in side], prompts),
        "ended": share([float(one["finished"]) for one in side], prompts),
        "tokens": fmean(one["length"] for one in side),
    }
    forms: dict[str, list[float]] = {}
    for one in side:
        for name, value in one["metrics"].items():
            if name.startswith(FORM):
                forms.setdefault(name, []).append(value)
    return figures | {
        f"{name.removeprefix(FORM)} ({len(forms[name])})": fmean(forms[name]) for name in sorted(forms)
    }
