"""Jobs on this machine: submitit's local executor in a session of its own."""

import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from submitit import LocalExecutor
from submitit.local.local import LocalJob

from cluster import processes, record
from cluster.record import Record
from cluster.states import State, Status

_FOREVER_MIN = 60.0 * 24 * 365  # submitit's local controller wants a time limit; a laptop has none


class DetachedExecutor(LocalExecutor):
    """Starts submitit's controller so that neither an interrupt nor the kernel's death reaches the job."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        super().__init__(folder)
        self.environment = environment

    @property
    def _submitit_command_str(self) -> str:
        # What submitit's controller runs: our ranks, in place of a pickled function.
        return shlex.join([sys.executable, "-u", "-m", "cluster.supervise", str(self.folder)])

    def start(self) -> LocalJob:
        """Start the controller, and with it the job."""
        return self._submit_command(self._submitit_command_str)

    def _submit_command(self, command: str) -> LocalJob:
        variables = {
            "SUBMITIT_LOCAL_NTASKS": "1",  # one supervisor, which starts the ranks
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(int(_FOREVER_MIN * 60)),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
            "SUBMITIT_EXECUTOR": "local",
        }
        with (self.folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process)


class LocalBackend:
    """Polls and cancels a job on this machine, given its record."""

    poll_s = 0.1

    def status(self, run: Path, job: Record) -> Status:
        """The job's status, from its exit record and its process."""
        folder = run / job.folder
        alive = processes.identity(int(job.id)) == job.identity  # looked at before the exit record is read
        outcome = record.read_json(folder / "exit.json")
        cancelled = (folder / "cancelled").exists()
        if outcome is None and alive:
            return Status(State.RUNNING, nodes=(job.host,))
        if outcome is None and job.host != socket.gethostname():
            return Status(State.UNKNOWN, f"it was started on {job.host}, and this is {socket.gethostname()}")
        if cancelled:
            return Status(State.CANCELLED, "cancelled", (job.host,))
        if outcome is None:
            return Status(State.FAILED, "its processes were killed from outside (out of memory, a reboot?)")
        return ended(outcome, (job.host,))

    def cancel(self, run: Path, job: Record) -> None:
        """End all processes of the job. Raises ValueError for a job on another machine."""
        if job.host != socket.gethostname():
            raise ValueError(
                f"{job.name} runs on {job.host}, and this is {socket.gethostname()}: cancel it there"
            )
        folder = run / job.folder
        (folder / "cancelled").touch()
        processes.end_job(str(folder))


def ended(outcome: dict, nodes: tuple[str, ...] = ()) -> Status:
    """The final status for an exit record {returncode, component, rank, note}."""
    code, note = outcome["returncode"], outcome.get("note", "")
    if code == 0:
        return Status(State.FINISHED, note, nodes, returncode=0)
    who = f"{outcome['component']} rank {outcome['rank']} " if "component" in outcome else ""
    how = f"ended by {signal_name(code)}" if code < 0 else f"ended with exit status {code}"
    return Status(
        State.FAILED,
        "; ".join(filter(None, [who + how, note])),
        nodes,
        returncode=code,
        component=outcome.get("component", ""),
        rank=outcome.get("rank", 0),
    )


def signal_name(code: int) -> str:
    """The name of the signal in a negative exit code: −9 → 'SIGKILL (out of memory?)'."""
    name = signal.Signals(-code).name
    return name + " (out of memory?)" if -code == signal.SIGKILL else name
