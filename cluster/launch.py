"""On a compute node: turn Slurm's variables into torch.distributed's, then exec the command.

    srun … python -m cluster.launch --component K -- COMMAND …

The command replaces this process (exec). Therefore the command is Slurm's task: Slurm sends the signals to the command and
reads the command's exit status.
"""

import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.cores import task_thread_variables
from cluster.hostlist import expand
from cluster.processes import JOB_VARIABLE

# Below Linux' ephemeral ports (32768 and up), so that no outgoing connection can use one of these ports.
_FIRST_PORT, _PORTS = 20_000, 10_000
# Distinguish a step from all earlier steps on its node, also of a requeued job, and of a Slurm that has begun at job 1 again.
_STEP = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_LAUNCHER_PORT")

STORE_VARIABLE = "ALIGNER_JOB_STORE"
"""Names the file through which the ranks of a single node find each other. Ranks of several nodes use MASTER_PORT, which is open
to other accounts and machines, although torch.distributed unpickles what comes from there."""


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


def step_store(environ: Mapping[str, str], component: int) -> str:
    """The value of STORE_VARIABLE for the current Slurm task. Every start has a file of its own.

    The small file stays in the node's temporary folder, because a rank that removed the file could leave other ranks waiting.
    """
    if environ["SLURM_STEP_NUM_NODES"] != "1" or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return ""
    name = "-".join([*(environ.get(name, "0") for name in _STEP), str(component)])
    return f"{tempfile.gettempdir()}/aligner-ranks-{os.getuid()}/{name}"


def make_private(folder: Path) -> None:
    """Make a folder that only this user can open. Raises PermissionError when other accounts can open an existing folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid() or there.st_mode & 0o077:
        raise PermissionError(
            f"{folder} belongs to another account, or other accounts can open the folder: remove the folder, or set TMPDIR to a "
            "folder of your own"
        )


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
    if store := step_store(os.environ, int(component)):
        try:
            make_private(Path(store).parent)
        except OSError as error:
            sys.exit(f"[launch] {error}")
    try:
        os.execvpe(command[0], command, {**os.environ, **variables, STORE_VARIABLE: store})
    except OSError as error:
        sys.exit(f"[launch] cannot run {command[0]!r} on this node: {error.strerror}; is its folder shared?")


if __name__ == "__main__":
    main(sys.argv[1:])
