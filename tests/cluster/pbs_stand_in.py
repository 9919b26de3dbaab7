"""A stand-in for PBS: qsub, qstat, qdel, qsig, qrerun and pbsdsh, which run jobs as processes of this machine.

    python pbs_stand_in.py COMMAND ARGUMENTS …        $PBS_STAND_IN is the folder that the commands share

Each job is a folder of small files. `qsub` starts one process for each job, its host (PBS calls it mom), which runs the
script as often as it is queued. As PBS does, it gives the script and its tasks little of the submitter's environment, and
ends all of their processes with the script. A file `hold` in the folder keeps jobs in the queue, `down` makes the server
fall silent, and `no-rerun` refuses qrerun, as PBS does to users without the operator's rights.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

SERVER = "server"
KILL_DELAY_S = 5.0
_POLL_S = 0.02


def write(path: Path, text: object) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(str(text))
    temporary.replace(path)


def read(path: Path, default: str = "") -> str:
    return path.read_text() if path.exists() else default


class Server:
    """The jobs in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def job(self, job_id: str) -> Path:
        folder = self.folder / job_id
        if not folder.is_dir():
            sys.exit(f"qstat: Unknown Job Id {job_id}")
        return folder

    def qsub(self, script: str) -> None:
        number = 1 + sum(1 for path in self.folder.iterdir() if path.is_dir())
        folder = self.folder / f"{number}.{SERVER}"
        folder.mkdir()
        write(folder / "script", Path(script).read_text())
        write(folder / "state", "Q")
        subprocess.Popen(
            [sys.executable, __file__, "mom", folder.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        print(folder.name)

    def qstat(self, *arguments: str) -> None:
        if arguments == ("-B",):
            return
        *_, job_id = arguments
        folder = self.job(job_id)
        print(f"Job Id: {job_id}")
        values = {"job_state": read(folder / "state"), "run_count": read(folder / "run_count", "0")}
        if values["job_state"] == "Q":
            values["comment"] = "Not Running: Insufficient amount of resource: ncpus"
        elif hosts := read(folder / "nodes").split():
            values["exec_host"] = "+".join(f"{host}/{slot}" for slot, host in enumerate(hosts))
        for key, value in values.items():
            print(
                f"    {key} = {value[:60]}"
                + "".join(f"\n\t{value[i : i + 60]}" for i in range(60, len(value), 60))
            )

    def qdel(self, job_id: str) -> None:
        folder = self.job(job_id)
        if read(folder / "state") == "F":
            sys.exit(f"qdel: Job has finished {job_id}")
        write(folder / "deleted", "")

    def qsig(self, *arguments: str) -> None:
        _, name, job_id = arguments
        os.kill(int(read(self.job(job_id) / "pid")), getattr(signal, name))

    def qrerun(self, job_id: str) -> None:
        if (self.folder / "no-rerun").exists():
            sys.exit(f"qrerun: Unauthorized Request  {job_id}")
        write(self.job(job_id) / "rerun", "")

    def pbsdsh(self, *arguments: str) -> None:
        """Run a task in a session of its own, and hand on no exit status."""
        number, command = arguments[1], arguments[3:]
        variables = {name: os.environ[name] for name in ("PATH", "HOME", "PBS_JOBID", "PBS_STAND_IN")}
        subprocess.run(command, env=variables | {"PBS_NODENUM": number}, start_new_session=True)

    def mom(self, job_id: str) -> None:
        """Run a job's script each time that the job is queued, until it has ended for good."""
        folder = self.job(job_id)
        while True:
            while (self.folder / "hold").exists() and not (folder / "deleted").exists():
                time.sleep(_POLL_S)
            if (folder / "deleted").exists():
                break
            self._run_once(folder)
            if (folder / "deleted").exists() or not (folder / "rerun").exists():
                break
            (folder / "rerun").unlink()
            write(folder / "state", "Q")
        write(folder / "state", "F")

    def _run_once(self, folder: Path) -> None:
        text = read(folder / "script")
        nodes, slots = map(int, re.search(r"select=(\d+):.*mpiprocs=(\d+)", text).groups())
        write(folder / "nodes", "".join(f"node{n + 1}\n" * slots for n in range(nodes)))
        write(folder / "run_count", 1 + int(read(folder / "run_count", "0")))
        variables = {name: os.environ[name] for name in ("PATH", "HOME", "PBS_STAND_IN")}
        variables |= {"PBS_JOBID": folder.name, "PBS_NODEFILE": str(folder / "nodes")}
        (output,) = shlex.split(re.search(r"^#PBS -o (.*)$", text, re.MULTILINE)[1])
        write(folder / "state", "R")
        with open(output, "ab") as log:
            process = subprocess.Popen(
                ["bash", str(folder / "script")],
                env=variables,
                cwd=os.environ["HOME"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        write(folder / "pid", process.pid)
        while process.poll() is None and not any((folder / name).exists() for name in ("deleted", "rerun")):
            time.sleep(_POLL_S)
        if (folder / "deleted").exists():
            write(folder / "state", "E")
        self._end(folder.name)
        process.wait()

    def _end(self, job_id: str) -> None:
        import psutil  # the other commands start twice as fast without it

        processes = [process for process in psutil.process_iter() if self._belongs(process, job_id)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(processes, KILL_DELAY_S)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _belongs(self, process: psutil.Process, job_id: str) -> bool:
        import psutil

        own = {"PBS_JOBID": job_id, "PBS_STAND_IN": str(self.folder)}  # another stand-in has a job 1, too
        try:
            return own.items() <= process.environ().items()
        except (psutil.Error, OSError):
            return False


def main(command: str, *arguments: str) -> None:
    server = Server(Path(os.environ["PBS_STAND_IN"]))
    if (server.folder / "down").exists() and command != "mom":
        sys.exit(f"{command}: cannot connect to server {SERVER}, error=111")
    getattr(server, command)(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
