"""Writes the command lines of jobs, for notebooks, recipes and sweeps. This module does not start jobs.

job_commands("sft", "runs/sft", {"model.optim.lr": 5e-6}, {"main": Resources(nodes=2, gpus_per_node=8)})
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

from aligner_lib.config.compose import compose, written
from aligner_lib.config.kind import Component
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.validation import without_effect
from aligner_lib.errors import ConfigError
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
    settings that the job would reject or that contradict the resources, and for components without a model or without use, and
    ValueError for components that the kind lacks.
    """
    run, parts = Path(run).absolute(), kind_of(kind).components
    if resources is not None and len(resources) > 1:
        if set(resources) != set(parts):
            known = " and ".join(parts) or "no components"
            raise ValueError(
                f"{kind} on the components {', '.join(resources)}: {kind} has {known}; name only "
                "known components, or choose resources without components, such as one_node"
            )
        return _component_commands(parts, run, settings, resources, profile)
    name, share = next(iter(resources.items())) if resources else ("main", None)
    own = _parallelism(share, settings) if share else {}
    return {name: command(kind, run, {**own, **settings}, profile, _python(share))}


def _component_commands(
    parts: Mapping[str, Component],
    run: Path,
    settings: Settings,
    resources: Mapping[str, Resources],
    profile: str | None,
) -> dict[str, list[str]]:
    """The command of each component, with the settings of its prefix and its own run folder inside the main run folder."""
    rest, commands, without_model = dict(settings), {}, []
    for name, part in parts.items():
        share = resources[name]
        processes = _parallelism(share, settings, part.prefix)
        own = {key: rest.pop(key) for key in list(rest) if part.prefix and key.startswith(part.prefix)}
        own = {key.removeprefix(part.prefix): value for key, value in own.items()}
        if part.port:  # the jobs of several users may share a machine
            own.setdefault(part.port, 0)
        if not part.prefix:  # the main component
            folders = {other.found_by: run / other.folder for other in parts.values() if other.found_by}
            own = folders | rest
            _refuse_idle(part.kind, folders, own, profile)
        commands[name] = command(part.kind, run / part.folder, processes | own, profile, _python(share))
        if part.model and not attrgetter(part.model)(compose(part.kind, _overrides(own), profile)):
            without_model.append(part.prefix + part.model)
    if without_model:
        raise ConfigError(
            f"{without_model[0]} has no value, and a job of its own can't start without its model: name a run folder, "
            "a checkpoint or a model folder"
        )
    return commands


def _refuse_idle(kind: str, folders: Settings, settings: Settings, profile: str | None) -> None:
    """Raises ConfigError if the main component uses none of the other components, whose run folders are `folders`."""
    idle = without_effect(kind_of(kind), compose(kind, _overrides(settings), profile))
    if reasons := [idle[key] for key in folders if key in idle]:
        raise ConfigError(
            f"{kind} on several components: {reasons[0].removesuffix('.')}; choose other environments, or resources without "
            "components, such as one_node"
        )


def _parallelism(share: Resources, settings: Settings, prefix: str = "") -> dict[str, object]:
    """The number of processes as settings. Raises ConfigError when the user's settings with the prefix have another number."""
    own = {"trainer.num_nodes": share.nodes, "trainer.devices": share.tasks}
    for (key, value), name in zip(own.items(), ("nodes", "tasks_per_node"), strict=True):
        if (given := settings.get(prefix + key, value)) != value:
            raise ConfigError(
                f"the resources start {share.nodes} × {share.tasks} processes, but {prefix}{key}={given}: leave the setting out, "
                f"or choose resources with {name}={given}"
            )
    return own


def _python(share: Resources | None) -> str:
    """The interpreter on the machine where the job runs. In a container, the interpreter differs from the current process's."""
    return (share and share.python) or sys.executable


def command(
    kind: str, run: Path, settings: Settings, profile: str | None = None, python: str = sys.executable
) -> list[str]:
    """The arguments of `aligner KIND` for a run folder. Raises ConfigError now, instead of hours later in the queue."""
    overrides = _overrides(settings)
    compose(kind, overrides, profile)
    words = [python, "-m", "aligner_lib", kind_of(kind).command]
    words += ["--profile", profile] if profile else []
    return [*words, "--run", str(run), *overrides]


def _overrides(settings: Settings) -> list[str]:
    return [f"{key}={written(value)}" for key, value in settings.items()]
