"""A run's completions as static tables, which remain in a saved notebook."""

from __future__ import annotations

import random
from collections.abc import Callable

from widgets.frontend.table import PromptCell, Table, shortened
from widgets.runs.series import as_run

# (field, 1 for ascending or -1 for descending); records without the field come last
ORDERS: dict[str, tuple[str, int]] = {
    "reward": ("reward", -1),
    "worst": ("reward", 1),
    "kl": ("kl", -1),
    "length": ("length", -1),
    "": ("", 1),
}
MOST_CHARACTERS = 600  # of a response, and of each turn of a prompt


def show_completions(
    run,
    *,
    step: int | None = None,
    n: int = 6,
    sort: str = "",
    split: str | None = None,
) -> Table:
    """A table of n completions of a run: prompt, response, reward, KL, length.

    step: None for the last step with rollouts. sort: `reward` (highest first), `worst`, `kl`, `length`, `random` (with a fixed
    seed), or "" for the order in the file. split: `train`, `validation`, or "" for both; None: validation if the step has any.
    Raises ValueError for a step without rollouts, and for an unknown order.
    """
    if split is None:
        validations = (r["step"] for r in as_run(run).rollouts() if r.get("split") == "validation")
        split = "validation" if any(step in (None, validated) for validated in validations) else ""
    records = completions(run, step, split)
    records = sorted(records, key=_order(sort))[:n]
    name = _name(run)
    prompts = f", prompts of {split}" if split else ""
    caption = f"{name}, step {records[0]['step']}{prompts}" if records else f"{name}: no completions"
    return table_of(records, caption)


def table_of(records: list[dict], caption: str) -> Table:
    """A table of rollout records. A field that no record has, such as the KL in a validation, gets no column."""
    columns = {
        "prompt": [PromptCell(record["prompt"], MOST_CHARACTERS) for record in records],
        "response": [shortened(record["response"], MOST_CHARACTERS) for record in records],
        "reward": [reward_of(record) for record in records],
        "advantage": [record.get("advantage") for record in records],
        "KL": [record.get("kl") for record in records],
        "tokens": [_tokens(record) for record in records],
    }
    columns = {
        name: cells
        for name, cells in columns.items()
        if name in ("prompt", "response") or any(c is not None for c in cells)
    }
    return Table(caption, list(columns), [list(row) for row in zip(*columns.values())])


def compare_completions(a, b, *, step: int | None = None, n: int = 6, sort: str = "") -> Table:
    """A table of the responses of two runs to the same prompts, side by side, with their rewards.

    step: of both runs; None: the last step of each run. sort: as in `show_completions`, by the records of b; or `gain`, the
    reward of b minus the reward of a, largest first.
    """
    of_b = {}
    for record in completions(b, step):
        of_b.setdefault(record["prompt"], record)
    pairs = [(r, of_b.pop(r["prompt"])) for r in completions(a, step) if r["prompt"] in of_b]
    if sort == "gain":
        pairs.sort(key=_gain)
    else:
        order = _order(sort)
        pairs.sort(key=lambda pair: order(pair[1]))
    rows = [
        [PromptCell(x["prompt"], MOST_CHARACTERS)]
        + [
            cell
            for record in (x, y)
            for cell in (shortened(record["response"], MOST_CHARACTERS), reward_of(record))
        ]
        for x, y in pairs[:n]
    ]
    caption = f"{len(rows)} of {len(pairs)} prompts that both runs answered"
    return Table(caption, ["prompt", _name(a), "reward", _name(b), "reward"], rows)


def completions(run, step: int | None = None, split: str = "") -> list[dict]:
    """The rollout records of a step. step: None for the last step with rollouts.

    Raises ValueError for a step without rollouts.
    """
    records = [r for r in as_run(run).rollouts() if not split or r.get("split") == split]
    if not records:
        return []
    steps = sorted({record["step"] for record in records})
    step = steps[-1] if step is None else step
    if step not in steps:
        which = f"{split} completions" if split else "completions"
        raise ValueError(f"{_name(run)} has no {which} of step {step}, only of {steps}")
    return [record for record in records if record["step"] == step]


def _order(sort: str) -> Callable:
    if sort == "random":
        draw = random.Random(0)
        return lambda record: draw.random()
    if sort not in ORDERS:
        raise ValueError(f"sort={sort!r}; completions sort by {', '.join(filter(None, ORDERS))}, random")
    name, sign = ORDERS[sort]
    return lambda record: _last_without(record.get(name), sign)


def _last_without(figure: float | None, sign: int) -> tuple[bool, float]:
    return (figure is None, sign * (figure or 0.0))


def _gain(pair: tuple[dict, dict]) -> tuple[bool, float]:
    before, after = (record.get("reward") for record in pair)
    return _last_without(None if None in (before, after) else after - before, -1)


def reward_of(record: dict) -> float | str | None:
    """The reward, or the failure of the environment in words."""
    return f"failed: {record['failure'].replace('_', ' ')}" if "failure" in record else record.get("reward")


def _tokens(record: dict) -> int | str | None:
    length = record.get("length")
    return length if record.get("finished", True) else f"{length}, cut off"


def _name(run) -> str:
    return as_run(run).name
