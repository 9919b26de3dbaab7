"""Several processes on a node: a job starts itself again as its ranks, and waits for their end."""

from __future__ import annotations

import os
import sys
import tempfile

from omegaconf import DictConfig

from aligner_lib.errors import UserError
from cluster.processes import signalled_children
from cluster.supervise import Rank, rank_specifications, watch


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
    """The command of a rank of `aligner NAME`."""
    return [
        *(sys.executable, "-m", "aligner_lib", name),
        *(() if profile is None else ("--profile", profile)),
        *("--run", config.exp_manager.explicit_log_dir),
        *(("--", *overrides) if overrides else ()),
    ]


def run_ranks(name: str, config: DictConfig, profile: str | None, overrides: list[str]) -> int:
    """Run `aligner NAME` as `trainer.devices` ranks on this machine, and return the exit code.

    A failed rank ends the other ranks, and its exit status is the exit code. A scheduler's signals to this process, and Ctrl-C,
    reach all ranks.
    """
    words = command(name, config, profile, overrides)
    component = {"name": "main", "ranks": config.trainer.devices, "command": words, "variables": {}}
    own = {**os.environ, "PYTHONUNBUFFERED": "1"}
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="aligner-ranks-") as stores, signalled_children() as start:
        ranks = [
            Rank(name, rank, start(words, env=own | variables))
            for name, rank, words, variables in rank_specifications([component], stores)
        ]
        code = watch(ranks, main="main", linger_s=0)["returncode"]
    return code if code >= 0 else 128 - code  # as a shell reports a signal
