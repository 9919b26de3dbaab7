"""On a compute node: turn Slurm's variables into torch.distributed's, then exec the command.

    srun … python -m cluster.launch --component K -- COMMAND …

The command replaces this process (exec) and is therefore Slurm's task: it gets the signals, and its exit
status counts.
"""

import os
import sys
from collections.abc import Mapping

from cluster.cores import thread_variables
from cluster.hostlist import expand
from cluster.processes import JOB_VARIABLE

# Below Linux' ephemeral ports (32768 and up), so that no outgoing connection can sit on one of them.
_FIRST_PORT, _PORTS = 20_000, 10_000


def rank_variables(
    rank: int, world_size: int, local_rank: int, local_size: int, host: str, port: int
) -> dict:
    """The variables that torch.distributed's env:// initialization reads."""
    values = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}


def master_port(job_id: int, component: int) -> int:
    """A port that jobs on the same node do not share; a requeued job keeps its port.

    Slurm gives every member of an array and every component of a hetjob a job id of its own. The components'
    ids follow the first one's, but inside a hetjob SLURM_JOB_ID is always the first, hence `component`.
    """
    return _FIRST_PORT + (job_id + component) % _PORTS


def from_slurm(environ: Mapping[str, str], component: int = 0) -> dict[str, str]:
    """torch.distributed's variables for this Slurm task. Raises KeyError outside of `srun`."""
    nodes = int(environ["SLURM_STEP_NUM_NODES"])
    tasks = int(environ["SLURM_STEP_NUM_TASKS"])
    return rank_variables(
        rank=int(environ["SLURM_PROCID"]),
        world_size=tasks,
        local_rank=int(environ["SLURM_LOCALID"]),
        local_size=tasks // nodes,
        host=expand(environ["SLURM_STEP_NODELIST"])[0],
        port=master_port(int(environ["SLURM_JOB_ID"]), component),
    )


def main(argv: list[str]) -> None:
    """Set the variables and exec the command in argv: --component K -- COMMAND."""
    flag, component, dashes, *command = argv
    assert (flag, dashes) == ("--component", "--") and command, f"usage: --component K -- COMMAND, got {argv}"
    variables = from_slurm(os.environ, int(component))
    if variables["RANK"] == "0":
        host, port = variables["MASTER_ADDR"], variables["MASTER_PORT"]
        folder = os.environ.get(JOB_VARIABLE, "")
        print(f"[launch] {variables['WORLD_SIZE']} ranks, rendezvous at {host}:{port}, {folder}", flush=True)
    variables |= thread_variables(int(variables["LOCAL_WORLD_SIZE"]))
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})
    except OSError as error:
        sys.exit(f"[launch] cannot run {command[0]!r} on this node: {error.strerror}; is its folder shared?")


if __name__ == "__main__":
    main(sys.argv[1:])
