"""README.md of a graduated run: its files, the command, what was carried over, and what the target lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

from aligner_lib.jobs.graduate.graduation import Graduation
from aligner_lib.models.export.card import without_machine


def write_readme(run: Graduation, target: ModuleType) -> None:
    """Write README.md into the folder. target: the module of a target."""
    (run.out / "README.md").write_text("\n".join(_lines(run, target)) + "\n", encoding="utf-8")


def _lines(run: Graduation, target: ModuleType) -> Iterator[str]:
    yield f"# {run.trained.run.name}, for {target.TITLE}\n"
    yield (
        f"A run of `aligner {run.kind}` (Aligner Lab), after {run.trained.step} steps, written by `aligner graduate --to "
        f"{target.NAME}`. The optimizer's state is not carried over: Adam's moments begin at 0."
    )
    yield f"\n## Command\n\n```\n{run.command}\n```\n\n{run.checked}"
    yield "\n## Files\n\n| file | content |\n| --- | --- |"
    yield from (f"| `{name}` | {text} |" for name, text in run.contents.items())
    yield "\nThe licence of the models is in the README.md of their folders."
    if run.notes:
        yield "\n## Notes\n"
        yield from (f"- {note}" for note in run.notes)
    yield "\n## Carried over\n\n| here | value | from |\n| --- | --- | --- |"
    for carried in run.carried:
        settings = (
            ", ".join(f"`{name}`" for name in carried.settings)
            or f"for the run's behaviour in {target.TITLE}"
        )
        yield f"| `{carried.key}` | {_value(_in_config(run, carried.key))} | {settings} |"
    yield f"\n## Not carried over\n\n{target.TITLE} has no equal of these settings, or their values belong to this project alone.\n"
    left_out = run.left_out()
    yield from (f"- `{name}`: {_value(value)}" for name, value in left_out.items())
    if not left_out:
        yield "Every setting that differs from its default was carried over."
    if run.differences:
        yield "\n## Differences\n"
        yield from (f"- {sentence}" for sentence in run.differences)


def _in_config(run: Graduation, key: str):
    value = run.target_config
    for name in key.split("."):
        value = value[name]
    return value


def _value(value) -> str:
    """A value as code, without paths of this machine."""
    return f"`{json.dumps(without_machine(value), ensure_ascii=False, default=str)}`"
