"""On a compute node: turn Slurm's variables into torch.distributed's, then exec the command.

    srun … python -m cluster.launch --component K -- COMMAND …

The command replaces this process (exec). Therefore the command is Slurm's task: Slurm sends the signals to the command and
reads the command's exit status.
"""

import os
import sys
from collections.abc import Mapping

from cluster.cores import task_thread_variables
from cluster.hostlist import expand
from cluster.processes import JOB_VARIABLE

# Below Linux' ephemeral ports (32768 and up), so that no outgoing connection can use one of these ports.
_FIRST_PORT, _PORTS = 20_000, 10_000


def rank_variables(
    rank: int, world_size: int, local_rank: int, local_size: int, host: str, port: int
) -> dict:
    """The variables for torch.distributed's env:// initialization."""
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
    """A port that jobs on the same node do not share. A requeued job keeps its port.

    Slurm gives a separate job id to every member of an array and to every component of a hetjob. The ids of a hetjob's
    components are consecutive, but inside a hetjob SLURM_JOB_ID is always the id of the first component. Therefore the function
    adds `component`.
    """
    return _FIRST_PORT + (job_id + component) % _PORTS


def from_slurm(environ: Mapping[str, str], component: int = 0) -> dict[str, str]:
    """torch.distributed's variables for the current Slurm task. Raises KeyError outside of `srun`."""
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
    variables |= task_thread_variables(int(variables["LOCAL_WORLD_SIZE"]))
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})
    except OSError as error:
        sys.exit(f"[launch] cannot run {command[0]!r} on this node: {error.strerror}; is its folder shared?")


if __name__ == "__main__":
    main(sys.argv[1:])
