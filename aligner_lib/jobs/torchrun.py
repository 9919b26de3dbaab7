"""Several processes on one node: a job starts itself again under torch's elastic launcher."""

from __future__ import annotations

import os
import sys

from omegaconf import DictConfig

from aligner_lib.errors import UserError
from cluster.cores import thread_variables


def needs_launcher(config: DictConfig) -> bool:
    """More than one rank is asked for, and nobody (torchrun, Slurm) has started the ranks yet."""
    trainer = config.trainer
    if "RANK" in os.environ or trainer.num_nodes * trainer.devices == 1:
        return False
    if trainer.num_nodes > 1:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes}: start the job on every node with RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT set (torchrun and cluster/ do that), or set trainer.num_nodes=1"
        )
    return True


def command(name: str, config: DictConfig, profile: str | None, overrides: list[str]) -> list[str]:
    """`aligner NAME` as `trainer.devices` processes on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        # without the first `--` the launcher takes our options for abbreviations of its own
        *(
            "--nproc-per-node",
            str(config.trainer.devices),
            "-m",
            "--",
            "aligner_lib",
            name,
        ),
        *(() if profile is None else ("--profile", profile)),
        *("--run", config.exp_manager.explicit_log_dir),
        *(("--", *overrides) if overrides else ()),
    ]


def relaunch(name: str, config: DictConfig, profile: str | None, overrides: list[str]) -> None:
    """Replace this process by the launcher: whoever started the job keeps one process id to signal and wait for."""
    arguments = command(name, config, profile, overrides)
    # the launcher would give each rank one thread, whatever the machine has
    os.environ.update(thread_variables(config.trainer.devices))
    sys.stdout.flush()
    os.execv(arguments[0], arguments)
