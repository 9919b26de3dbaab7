"""Command lines of jobs, written alike by notebooks, recipes and sweeps. Nothing here starts anything.

job_commands("sft", "runs/sft", {"model.optim.lr": 5e-6}, {"main": Resources(nodes=2, gpus_per_node=8)})
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from aligner_lib.config.compose import compose
from aligner_lib.config.kind import Component
from aligner_lib.config.kinds import kind_of
from cluster.resources import Resources

Settings = Mapping[str, object]
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")  # needs no quotes, unless it reads as something else:
_OTHER_VALUES = {"null", "true", "false", "inf", "nan"}


def job_commands(
    kind: str,
    run: Path | str,
    settings: Settings,
    wanted: Mapping[str, Resources] | None = None,
    profile: str | None = None,
) -> dict[str, list[str]]:
    """Each component's command: a kind that can be split (PPO: `critic` and `actor`) is a job for each of several components.

    wanted: resources by component, which say how many processes there are; None: the settings say it.
    Raises ConfigError for settings that the job would refuse, ValueError for components that this kind does not have.
    """
    run, parts = Path(run).absolute(), kind_of(kind).components
    if wanted is not None and len(wanted) > 1:
        if list(wanted) != list(parts):
            known = " and ".join(parts) or "no components"
            raise ValueError(f"{kind} on the components {', '.join(wanted)}: it has {known}")
        return _component_commands(parts, run, settings, wanted, profile)
    name, share = next(iter(wanted.items())) if wanted else ("main", None)
    own = _parallelism(share) if share else {}
    return {name: command(kind, run, {**own, **settings}, profile, _python(share))}


def _component_commands(
    parts: Mapping[str, Component],
    run: Path,
    settings: Settings,
    wanted: Mapping[str, Resources],
    profile: str | None,
) -> dict[str, list[str]]:
    """Each component with the settings of its prefix, and a run folder of its own inside the main one's."""
    rest, commands = dict(settings), {}
    for name, part in parts.items():
        own = {key: rest.pop(key) for key in list(rest) if part.prefix and key.startswith(part.prefix)}
        own = {key.removeprefix(part.prefix): value for key, value in own.items()}
        if not part.prefix:  # the main one
            found = {other.found_by: run / other.folder for other in parts.values() if other.found_by}
            own = found | rest
        own = _parallelism(wanted[name]) | own
        commands[name] = command(part.kind, run / part.folder, own, profile, _python(wanted[name]))
    return commands


def _parallelism(share: Resources) -> dict[str, object]:
    return {"trainer.num_nodes": share.nodes, "trainer.devices": share.tasks}


def _python(share: Resources | None) -> str:
    """The interpreter where the job runs: in a container it is not this one."""
    return (share and share.python) or sys.executable


def command(
    kind: str, run: Path, settings: Settings, profile: str | None = None, python: str = sys.executable
) -> list[str]:
    """The words of `aligner KIND` for a run folder. Raises ConfigError, here and not hours later in the queue."""
    overrides = [f"{key}={written(value)}" for key, value in settings.items()]
    compose(kind, overrides, profile)
    words = [python, "-m", "aligner_lib", kind_of(kind).command]
    words += ["--profile", profile] if profile else []
    return [*words, "--run", str(run), *overrides]


def written(value: object) -> str:
    """A value in the grammar of overrides."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(written(item) for item in value) + "]"
    if isinstance(value, Path | str):
        if _PLAIN.fullmatch(str(value)) and str(value).lower() not in _OTHER_VALUES:
            return str(value)
        # a backslash is one, except before a quote: there it takes two, and the quote takes another
        text = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), str(value))
        return f"'{text}'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
