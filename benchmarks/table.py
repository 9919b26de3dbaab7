"""The results as tables for people."""

from __future__ import annotations

from statistics import median

from rich.markup import escape
from rich.table import Table

from benchmarks.measure import Comparison, RemoteCriticBench, StepCost, WaitTimes

Result = Comparison | StepCost | WaitTimes | RemoteCriticBench


def comparison_table(result: Comparison) -> Table:
    """Speeds of all sides. A ratio is Aligner Lab's speed divided by the speed of the row's side, the median over rounds."""
    table = Table(title=result.name, title_justify="left")
    table.add_column("side and settings")
    for column in (result.unit, "lowest – highest", "ours is", "aim"):
        table.add_column(column, justify="right", no_wrap=True)
    for number, side in enumerate(result.sides):
        table.add_row(
            f"{side.name}: {side.settings}",
            f"{median(side.speeds):,.0f}",
            f"{min(side.speeds):,.0f} – {max(side.speeds):,.0f}",
            f"{result.ratio(side):.2f} ×" if number else "",
            verdict(result.ratio(side), result.aim, at_least=True) if number == 1 and result.aim else "",
        )
    return table


def step_table(result: StepCost) -> Table:
    """PPO's step compared with its passes."""
    table = _seconds_table("PPO, one step")
    for name, seconds in result.as_dict()["passes"].items():
        table.add_row(f"  {name}", f"{seconds['median']:.2f}", "", "", "")
    table.add_row("sum of the bare passes", f"{median(result.bare):.2f}", _spread(result.bare), "", "")
    aim = verdict(result.ratio, result.aim, at_least=False)
    table.add_row(
        "the trainer's step",
        f"{median(result.steps):.2f}",
        _spread(result.steps),
        f"{result.ratio:.2f} ×",
        aim,
    )
    return table


def waits_table(result: WaitTimes) -> Table:
    """Seconds, with the best time of each row."""
    table = _seconds_table(result.name)
    for what, seconds in result.seconds.items():
        aim = verdict(min(seconds), result.aims[what], at_least=False)
        table.add_row(escape(what), f"{min(seconds):.2f}", _spread(seconds), "", aim)
    return table


def remote_critic_table(result: RemoteCriticBench) -> Table:
    """A step in either layout, and the cost of sending requests."""
    table = _seconds_table("PPO as two jobs, one step")
    table.add_row("one process", f"{median(result.in_process):.2f}", _spread(result.in_process), "", "")
    aim = verdict(result.ratio, result.aim, at_least=False)
    table.add_row(
        "two jobs",
        f"{median(result.remote_critic):.2f}",
        _spread(result.remote_critic),
        f"{result.ratio:.2f} ×",
        aim,
    )
    table.add_row(
        "  of it waiting for the critic", f"{median(result.waits):.2f}", _spread(result.waits), "", ""
    )
    for name, seconds in result.round_trips.items():
        count = result.calls.get(name, 0)
        spread = f"{min(seconds):.4f} – {max(seconds):.4f}"
        table.add_row(f"  round trip: {name}, {count} a step", f"{median(seconds):.4f}", spread, "", "")
    aim = verdict(result.transport_share, result.transport_aim, at_least=False)
    table.add_row("  all round trips, of a step", "", "", f"{result.transport_share:.1%}", aim)
    return table


TABLES = {
    Comparison: comparison_table,
    StepCost: step_table,
    WaitTimes: waits_table,
    RemoteCriticBench: remote_critic_table,
}


def table_of(result: Result) -> Table:
    return TABLES[type(result)](result)


def _seconds_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for column in ("seconds", "lowest – highest", "ratio", "aim"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def verdict(value: float, aim: float, at_least: bool) -> str:
    """The aim, and whether the value reaches the aim."""
    reached = value >= aim if at_least else value <= aim
    return f"{'≥' if at_least else '≤'} {aim:g} {'reached' if reached else 'missed'}"


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} – {max(values):.2f}"
