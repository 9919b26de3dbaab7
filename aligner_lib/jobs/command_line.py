"""Writes the command lines of jobs, for notebooks, recipes and sweeps. This module does not start jobs.

job_commands("sft", "runs/sft", {"model.optim.lr": 5e-6}, {"main": Resources(nodes=2, gpus_per_node=8)})
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from aligner_lib.config.compose import compose, written
from aligner_lib.config.kind import Component
from aligner_lib.config.kinds import kind_of
from cluster.resources import Resources

Settings = Mapping[str, object]


def job_commands(
    kind: str,
    run: Path | str,
    settings: Settings,
    resources: Mapping[str, Resources] | None = None,
    profile: str | None = None,
) -> dict[str, list[str]]:
    """Return the command of each component. A kind that can be split (PPO: `critic` and `actor`) has several components.

    resources: by component, determines the number of processes; None: the settings determine the number. Raises ConfigError for
    settings that the job would reject, and ValueError for components that the kind lacks.
    """
    run, parts = Path(run).absolute(), kind_of(kind).components
    if resources is not None and len(resources) > 1:
        if list(resources) != list(parts):
            known = " and ".join(parts) or "no components"
            raise ValueError(
                f"{kind} on the components {', '.join(resources)}: {kind} has {known}; name only "
                "known components, or choose resources without components, such as one_node"
            )
        return _component_commands(parts, run, settings, resources, profile)
    name, share = next(iter(resources.items())) if resources else ("main", None)
    own = _parallelism(share) if share else {}
    return {name: command(kind, run, {**own, **settings}, profile, _python(share))}


def _component_commands(
    parts: Mapping[str, Component],
    run: Path,
    settings: Settings,
    resources: Mapping[str, Resources],
    profile: str | None,
) -> dict[str, list[str]]:
    """The command of each component, with the settings of its prefix and its own run folder inside the main run folder."""
    rest, commands = dict(settings), {}
    for name, part in parts.items():
        own = {key: rest.pop(key) for key in list(rest) if part.prefix and key.startswith(part.prefix)}
        own = {key.removeprefix(part.prefix): value for key, value in own.items()}
        if not part.prefix:  # the main component
            folders = {other.found_by: run / other.folder for other in parts.values() if other.found_by}
            own = folders | rest
        own = _parallelism(resources[name]) | own
        commands[name] = command(part.kind, run / part.folder, own, profile, _python(resources[name]))
    return commands


def _parallelism(share: Resources) -> dict[str, object]:
    return {"trainer.num_nodes": share.nodes, "trainer.devices": share.tasks}


def _python(share: Resources | None) -> str:
    """The interpreter on the machine where the job runs. In a container, the interpreter differs from the current process's."""
    return (share and share.python) or sys.executable


def command(
    kind: str, run: Path, settings: Settings, profile: str | None = None, python: str = sys.executable
) -> list[str]:
    """The arguments of `aligner KIND` for a run folder. Raises ConfigError now, instead of hours later in the queue."""
    overrides = [f"{key}={written(value)}" for key, value in settings.items()]
    compose(kind, overrides, profile)
    words = [python, "-m", "aligner_lib", kind_of(kind).command]
    words += ["--profile", profile] if profile else []
    return [*words, "--run", str(run), *overrides]
