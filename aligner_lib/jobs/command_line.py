"""Command lines of jobs, written alike by notebooks, recipes and sweeps. Nothing here starts anything.

job_commands("sft", "runs/sft", {"model.optim.lr": 5e-6}, {"main": Resources(nodes=2, gpus_per_node=8)})
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from aligner_lib.config.compose import compose
from aligner_lib.jobs.torchrun import COMMANDS
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
    """Each component's command. PPO on a `critic` and an `actor` is two jobs; anything else is one.

    wanted: resources by component, which say how many processes there are; None: the settings say it.
    Raises ConfigError for settings that the job would refuse, ValueError for components that this kind does not have.
    """
    run = Path(run).absolute()
    if wanted is not None and len(wanted) > 1:
        if kind != "ppo" or list(wanted) != ["critic", "actor"]:
            raise ValueError(
                f"{kind} on the components {', '.join(wanted)}: only ppo has several, `critic` and `actor`"
            )
        return _two_jobs(run, settings, wanted, profile)
    name, share = next(iter(wanted.items())) if wanted else ("main", None)
    parallelism = _parallelism(share) if share else {}
    if kind in ("ppo", "evaluate"):  # the critic is in the same processes
        parallelism |= {f"critic.{key}": value for key, value in parallelism.items()}
    return {name: command(kind, run, {**parallelism, **settings}, profile, _python(share))}


def _two_jobs(run: Path, settings: Settings, wanted: Mapping[str, Resources], profile: str | None) -> dict:
    """The critic with a run folder of its own inside the actor's, where the actor finds its address."""
    critic = {
        key.removeprefix("critic."): value for key, value in settings.items() if key.startswith("critic.")
    }
    actor = {key: value for key, value in settings.items() if not key.startswith("critic.")}
    actor = {"remote_critic_rm.critic.run": run / "critic", **actor}
    jobs = {"critic": ("critic", run / "critic", critic), "actor": ("ppo", run, actor)}
    return {
        name: command(
            kind, folder, {**_parallelism(wanted[name]), **settings}, profile, _python(wanted[name])
        )
        for name, (kind, folder, settings) in jobs.items()
    }


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
    words = [python, "-m", "aligner_lib", COMMANDS.get(kind, kind)]
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
