"""The resources of a job whose cell names none: on a cluster, and for PPO's two jobs on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from aligner_lib.config.compose import compose
from aligner_lib.config.kinds import kind_of
from aligner_lib.run_folder.reader import RunFolder
from cluster.gpus import visible_gpus
from cluster.resources import Resources

ON_GPUS = ("gpu", "slurm")  # the profiles whose trainer.devices are GPUs


def task_for_each_process(kind: str, settings: Mapping[str, object], profile: str) -> Resources:
    """A task for each process in the settings of a kind of job and, with a profile for GPUs, a GPU for each task."""
    trainer = compose(kind, profile=profile).trainer
    nodes, tasks = (settings.get(f"trainer.{name}", trainer[name]) for name in ("num_nodes", "devices"))
    return Resources(nodes, tasks, tasks if profile in ON_GPUS else 0)


def one_task(parent: RunFolder, settings: Mapping[str, object], profile: str) -> Resources:
    """A single task and, with a profile for GPUs, a GPU for each process of a branch. settings: the branch's own."""
    trainer = (parent.info.get("config") or {}).get("trainer") or {}
    processes = settings.get("trainer.devices", trainer.get("devices", 1))
    return Resources(1, 1, processes if profile in ON_GPUS else 0)


def critic_and_actor(settings: Mapping[str, object], profile: str) -> dict[str, Resources]:
    """A task for each process of PPO's two jobs, and GPUs as for `task_for_each_process`."""
    resources = {}
    for name, part in kind_of("ppo").components.items():
        own = {
            key.removeprefix(part.prefix): value
            for key, value in settings.items()
            if key.startswith(part.prefix)
        }
        resources[name] = task_for_each_process(part.kind, own, profile)
    return resources


def critic_and_actor_here(settings: Mapping[str, object]) -> dict[str, Resources]:
    """A process for each of PPO's two jobs, or the settings' number, with a GPU for each process if this machine has GPUs."""
    has_gpus, resources = bool(visible_gpus()), {}
    for name, part in kind_of("ppo").components.items():
        processes = settings.get(f"{part.prefix}trainer.devices", 1)
        resources[name] = Resources(1, processes, processes if has_gpus else 0)
    return resources
