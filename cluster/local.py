"""Jobs on this machine. A supervisor (`cluster/supervise.py`) in its own session starts the ranks."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cluster import processes, record
from cluster.environment import job_environment, own_variables
from cluster.gpus import divided, visible_gpus
from cluster.record import Record
from cluster.resources import Resources
from cluster.scheduler import Scheduler, Submission, SubmissionRefused
from cluster.states import State, Status, status_at_end

# A job of another host counts as ended when its run is silent for so long: a container has a new host name at each start.
SILENT_S = 120.0


class LocalScheduler(Scheduler):
    """Runs a job on the submitting machine, without a queue: every job starts at once."""

    name = "local"
    title = "this machine"
    poll_s = 0.1
    on_this_machine = True
    runs_hetjobs = True

    def refuse_unsupported(
        self, components: Mapping[str, object], resources: Mapping[str, Resources]
    ) -> None:
        """Raises SubmissionRefused for resources with several nodes."""
        super().refuse_unsupported(components, resources)
        if several := [f"{name}: {share.nodes}" for name, share in resources.items() if share.nodes > 1]:
            raise SubmissionRefused(
                f"where='local' is a single node, but the resources ask for more ({', '.join(several)}): set nodes "
                "to 1, or choose a scheduler with more machines"
            )

    def refusal(self, resources: Mapping[str, Resources]) -> str:
        """The reason why no job with these resources can run here: several nodes, or more GPUs than the machine has."""
        return super().refusal(resources) or _missing_gpus(resources, {})

    def submit(self, submission: Submission) -> list[Record]:
        """Start the supervisor in its own session, so that neither an interrupt nor the death of the kernel ends the job.

        Raises SubmissionRefused for a component with more GPUs than the machine has. Several components may share GPUs.
        """
        member = submission.only_member
        if problem := _missing_gpus(submission.resources, submission.variables):
            raise SubmissionRefused(problem)
        linger_s = max(share.linger_s for share in submission.resources.values())
        record.write_json(
            member.folder / "spec.json", {"components": _specification(submission), "linger_s": linger_s}
        )
        variables = {**submission.variables, processes.JOB_VARIABLE: str(member.folder)}
        with (member.folder / "supervisor.log").open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "cluster.supervise", str(member.folder)],
                env={**job_environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        identity = processes.identity(supervisor.pid) or ""
        return [submission.record(self.name, submission.name, str(supervisor.pid), identity=identity)]

    def status(self, run: Path, job: Record) -> Status:
        """The job's status, from its exit record and its supervisor's process."""
        folder = run / job.folder
        alive = processes.identity(int(job.id)) == job.identity  # looked up before the exit record is read
        outcome = record.read_json(folder / "exit.json")
        if outcome is None and alive:
            return Status(State.RUNNING, nodes=(job.host,))
        if outcome is None and job.host != socket.gethostname():
            elsewhere = f"it was started on {job.host}, and this is {socket.gethostname()}"
            if _is_silent(run, job):
                return Status(
                    State.FAILED, f"{elsewhere}: its run gives no sign of life any more", (job.host,)
                )
            return Status(State.UNKNOWN, elsewhere)
        if (folder / "cancelled").exists():
            return Status(State.CANCELLED, "cancelled", (job.host,))
        if outcome is None:
            if not folder.exists():
                return Status(State.FAILED, f"its folder {folder} was deleted")
            return Status(State.FAILED, "its processes were killed from outside (out of memory, a reboot?)")
        return status_at_end(outcome, (job.host,))

    def cancel(self, run: Path, job: Record) -> None:
        """End all processes of the job. Raises ValueError for a job on another machine."""
        if job.host != socket.gethostname():
            raise ValueError(
                f"{job.name} runs on {job.host}, not on {socket.gethostname()}: cancel the job on {job.host}"
            )
        folder, supervisor = run / job.folder, int(job.id)
        (folder / "cancelled").touch()
        # At first to the supervisor alone, which needs GRACE_S for stubborn ranks, and then cleans up and records the end.
        deadline = time.monotonic() + 2 * processes.GRACE_S
        with contextlib.suppress(ProcessLookupError):
            if processes.identity(supervisor) == job.identity:
                os.kill(supervisor, signal.SIGTERM)
        while processes.identity(supervisor) == job.identity and time.monotonic() < deadline:
            time.sleep(0.05)
        processes.end_job(str(folder))
        if processes.identity(supervisor) == job.identity:
            raise RuntimeError(
                f"process {supervisor} of {job.name} runs and does not name {folder}, as after a renaming of the run folder: "
                f"end the process by hand (kill {supervisor})"
            )

    def requeue(self, run: Path, job: Record) -> None:
        """Raises ValueError, because the machine has no queue."""
        raise ValueError(
            f"{job.name} runs on {self.title}, which has no queue: stop the job and submit the job again to resume"
        )

    def script(self, submission: Submission) -> str:
        """A bash script that starts the same ranks with the same logs, waits for them, and ends with a failed rank's status."""
        from cluster.supervise import (
            rank_specifications,  # `python -m cluster.supervise` warns if the package has loaded it
        )

        member = submission.only_member
        exports = {**own_variables(), **submission.variables, processes.JOB_VARIABLE: str(member.folder)}
        lines = ["#!/bin/bash", *(f"export {name}={shlex.quote(value)}" for name, value in exports.items())]
        lines.append(f"mkdir -p {shlex.quote(str(member.folder))}")
        lines.append("stores=$(mktemp -d) || exit")
        for name, rank, command, variables in rank_specifications(_specification(submission), "$stores"):
            words = [*(f"{key}={value}" for key, value in variables.items()), shlex.join(command)]
            log = record.log_path(member.folder, name, rank)
            lines += [f"{' '.join(words)} >>{shlex.quote(str(log))} 2>&1 &", "ranks+=($!)"]
        waits = 'for rank in "${ranks[@]}"; do wait "$rank" || status=${status:-$?}; done'
        # not in a trap: ranks may outlive an interrupted script, and wait for a missing store
        end = ['rm -r "$stores"', 'exit "${status:-0}"', ""]
        return "\n".join([*lines, "status=", waits, *end])


def _is_silent(run: Path, job: Record) -> bool:
    """Whether the job's run has had a heartbeat, and has none any more. A command without a heartbeat is never silent."""
    beat = (record.run_info(run).get("heartbeat") or {}).get("time", 0.0)
    return job.submitted < beat < time.time() - SILENT_S


def _missing_gpus(resources: Mapping[str, Resources], variables: Mapping[str, str]) -> str:
    """The reason why a job with these variables finds too few GPUs here; "" when there are enough."""
    requests, there = _gpu_requests(resources), len(_gpus(resources, variables))
    if excessive := [f"{name}: {number}" for name, number in requests.items() if number > there]:
        return (
            f"where='local': this machine has {there} GPUs, but the resources ask for more ({', '.join(excessive)}): set "
            f"gpus_per_node to {there}, or choose a scheduler with larger machines"
        )
    return ""


def _gpu_requests(resources: Mapping[str, Resources]) -> dict[str, int]:
    return {name: share.gpus_per_node for name, share in resources.items()}


def _gpus(resources: Mapping[str, Resources], variables: Mapping[str, str]) -> list[str]:
    """The GPUs visible to the job; empty, without a call of nvidia-smi, for a job that requests no GPUs."""
    return visible_gpus({**os.environ, **variables}) if any(_gpu_requests(resources).values()) else []


def _specification(submission: Submission) -> list[dict]:
    """The components in the supervisor's spec.json."""
    resources = submission.resources
    variables = divided(_gpus(resources, submission.variables), _gpu_requests(resources))
    return [
        {
            "name": name,
            "command": command,
            "ranks": resources[name].tasks,
            "variables": variables[name],
        }
        for name, command in submission.only_member.components.items()
    ]


SCHEDULER = LocalScheduler
