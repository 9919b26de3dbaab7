"""Several processes on a node: a job restarts itself under torch's elastic launcher."""

from __future__ import annotations

import os
import sys

from omegaconf import DictConfig

from aligner_lib.errors import UserError
from cluster.cores import thread_variables


def needs_launcher(config: DictConfig) -> bool:
    """Whether the settings need several ranks and no launcher (torchrun, Slurm) has started them.

    Raises UserError for several nodes without a launcher.
    """
    trainer = config.trainer
    if "RANK" in os.environ or trainer.num_nodes * trainer.devices == 1:
        return False
    if trainer.num_nodes > 1:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes}: start the job on every node with RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT set (torchrun and cluster/ set all four), or set trainer.num_nodes=1"
        )
    return True


def command(name: str, config: DictConfig, profile: str | None, overrides: list[str]) -> list[str]:
    """The command for running `aligner NAME` in `trainer.devices` processes on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        # without the first `--`, the launcher reads our options as abbreviations of its own options
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
    """Replace this process by the launcher. The process id stays the same, so the caller can still signal the job and wait for
    it."""
    arguments = command(name, config, profile, overrides)
    # The launcher would give each rank a single thread on any machine.
    os.environ.update(thread_variables(config.trainer.devices))
    sys.stdout.flush()
    os.execv(arguments[0], arguments)
