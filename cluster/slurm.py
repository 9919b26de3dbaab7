"""Jobs on Slurm: submission, and their state."""

import re
import signal
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from cluster import checks, hostlist, queue, record
from cluster.findings import Finding
from cluster.queue import Entry, Unreachable
from cluster.record import Record
from cluster.resources import Resources
from cluster.scheduler import Scheduler, Submission, SubmissionRefused
from cluster.states import State, Status, status_at_end

# Slurm's states, by their meaning for a run that is queued again after a lost node or a preemption.
_WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
_SUSPENDED = {"SUSPENDED", "STOPPED"}
_ACTIVE = {"RUNNING", "COMPLETING", "SIGNALING", "RESIZING", "STAGE_OUT"} | _SUSPENDED
_REVOKED = "REVOKED"
_TAKEN = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED"}
_FAILURES = {
    "TIMEOUT": "the time limit came before the checkpoint was written: ask for more time or a longer signal_delay_s",
    "OUT_OF_MEMORY": "out of memory: ask for more mem, or a smaller micro batch",
    "DEADLINE": "its deadline passed",
    "NODE_FAIL": "a node failed, and Slurm did not queue the job again",
    "BOOT_FAIL": "a node did not boot, and Slurm did not queue the job again",
    "PREEMPTED": "preempted, and Slurm did not queue the job again",
    "FAILED": "the batch script failed before the command's end; see batch.log",
    "COMPLETED": "the batch script left no exit record; see batch.log",
    "": "it left the queue without an exit record (killed with its node?)",
}
# What lets a held job go on, by Slurm's reason. A user may not release a job that an administrator has held.
_HOLDS = {
    "JobHeldAdmin": "ask an administrator of the cluster to release the job",
    "JobHoldMaxRequeue": "Slurm does not start the job again: cancel the job and submit it again to resume",
}
# The signals in srun's messages about tasks. SIGTERM is left out: with SIGTERM, Slurm itself ends the other tasks.
_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals() - {signal.SIGTERM}}
_SIGNALS["Out Of Memory"] = signal.SIGKILL
_TASK_END = re.compile(
    rf"tasks? (\d+)[\d,-]*: (?:Exited with exit code (\d+)|({'|'.join(map(re.escape, _SIGNALS))})\b)"
)
_SETTLE_S = 60.0  # a network file system delays exit records, and Slurm delays requeues


class SlurmScheduler(Scheduler):
    """Submits through submitit, with hetjobs and arrays, and follows jobs with Slurm's own commands."""

    name = "slurm"
    title = "Slurm"
    runs_hetjobs = True
    runs_arrays = True

    def script(self, submission: Submission) -> str:
        """The batch script, with a block of #SBATCH lines for each component."""
        from cluster import sbatch  # loads submitit, which a job on this machine does not need

        return sbatch.script(submission)

    def submit(self, submission: Submission) -> list[Record]:
        """Submit a job, a hetjob, or an array. Raises SubmissionRefused with Slurm's reason and the cluster's resources."""
        from cluster.hetjob import HetjobExecutor

        executor = HetjobExecutor(submission)
        checks.refuse_impossible(submission.resources)
        submitted, cluster = time.time(), queue.cluster_name()
        try:
            job_id = executor.start().job_id  # of a hetjob: the first component's
        except SubmissionRefused as refused:
            raise SubmissionRefused(checks.explain_refusal(str(refused), submission.resources)) from refused
        details = {"cluster": cluster, "mark": str(submission.folder), "submitted": submitted}
        ids = [
            f"{job_id}_{index}" if submission.is_array else job_id for index in range(len(submission.members))
        ]
        return [
            submission.record(self.name, member, member_id, **details)
            for member, member_id in zip(submission.members, ids, strict=True)
        ]

    def unavailable(self) -> str:
        """The reason why no job can be submitted from here: no sbatch, or a controller that does not answer."""
        return checks.unavailable()

    def check(self, resources=None, shared: Path | str = ".", probe: bool = True) -> list[Finding]:
        """Check the controller, the partitions, accounting, the resources and, with a probe job, a compute node."""
        return checks.check_slurm(resources, Path(shared), probe)

    def refuse_unsupported(
        self, components: Mapping[str, object], resources: Mapping[str, Resources]
    ) -> None:
        """Raises SubmissionRefused for a hetjob in which Slurm would hand a component's value on to another component."""
        super().refuse_unsupported(components, resources)
        checks.refuse_inherited(resources)

    def status(self, run: Path, job: Record) -> Status:
        """The job's status: from its exit record, else squeue, else sacct, else the batch script's note."""
        folder = run / job.folder
        cancelled = (folder / "cancelled").exists()
        outcome = record.read_json(folder / "exit.json")
        if outcome is not None:  # written by the batch script; the scheduler need not confirm the record
            queue.QUEUE.forget(job.id)
            return Status(State.CANCELLED, "cancelled") if cancelled else _from_record(folder, outcome)
        try:
            entries = [entry for entry in queue.QUEUE.entries(job.id) if entry.is_of(job.mark)]
        except Unreachable as problem:
            return Status(State.UNKNOWN, f"Slurm does not answer: {problem}")
        status = _from_queue(entries, folder) if entries else _from_accounting(job, folder)
        if cancelled and status.state != State.PENDING:
            return Status(State.CANCELLED, "cancelled", status.nodes)
        return status

    def cancel(self, run: Path, job: Record) -> None:
        """Cancel the job with scancel. Raises RuntimeError when scancel fails, Unreachable without Slurm."""
        self._tool("scancel", job.id)
        (run / job.folder / "cancelled").touch()  # only after scancel succeeded
        queue.QUEUE.forget(job.id)

    def requeue(self, run: Path, job: Record) -> None:
        """Send the notice that Slurm gives before the time limit: save a checkpoint, end, queue again.

        Raises ValueError for a job that waits or has ended, RuntimeError when scancel fails, Unreachable without Slurm.
        """
        queue.QUEUE.forget(job.id)  # ask now, because scancel does not answer before the batch script runs
        state = self.status(run, job).state
        if state == State.PENDING:
            raise ValueError(f"{job.name} waits in the queue already: wait for the job's start")
        if state.final:
            raise ValueError(f"{job.name} has ended ({state}): submit the job again to resume")
        self._tool("scancel", "--batch", "--signal=USR2", job.id)

    def _tool(self, *words: str) -> None:
        answer = queue.run_tool(*words)
        if answer.returncode:
            raise RuntimeError(f"{' '.join(words)}: {answer.stderr.strip()}")


def _from_record(folder: Path, outcome: dict) -> Status:
    """The status in exit.json. srun's exit code is the highest exit code of all ranks, so the status names the first failed
    rank."""
    return status_at_end(outcome | first_failure(folder, outcome["component"]))


def first_failure(folder: Path, component: str) -> dict:
    """The {rank, returncode} of the task that failed first, from srun's messages; {} when srun names no task."""
    path = folder / f"{component}.srun.log"
    text = path.read_text(errors="replace") if path.exists() else ""
    if match := _TASK_END.search(text):
        rank, code, signal_text = match.groups()
        return {"rank": int(rank), "returncode": int(code) if code else -_SIGNALS[signal_text]}
    return {}


def _taken(folder: Path) -> str:
    """The batch script's note on why the scheduler ended the script: REQUEUED, TIMEOUT, CANCELLED or ""."""
    path = folder / "taken"
    return path.read_text().strip() if path.exists() else ""


def _from_queue(entries: list[Entry], folder: Path) -> Status:
    """The status of all components together: a hetjob runs when every component runs."""
    states = {entry.state for entry in entries}
    nodes = tuple(host for entry in entries for host in hostlist.expand(entry.nodes))
    reason = next((entry.reason for entry in entries if entry.reason), "")
    start = max(entry.start for entry in entries)
    if states & _WAITING:
        if reason in _HOLDS:
            reason += f"; {_HOLDS[reason]}"
        elif "held" in reason.lower():  # held by its user, or by Slurm when a node could not start the job
            reason += f"; 'scontrol release {entries[0].job}' lets it go on"
        return Status(State.PENDING, reason, start=start)
    if states & _ACTIVE:
        return Status(State.RUNNING, "suspended" if states & _SUSPENDED else "", nodes)
    if _REVOKED in states:
        return Status(
            State.UNKNOWN,
            "another cluster of the federation has started the job: set SLURM_CLUSTERS to that cluster",
        )
    ago = min(_seconds_since(entry.end) for entry in entries)
    if ago < _SETTLE_S and _taken(folder) == "REQUEUED":  # a hetjob's components look cancelled for a moment
        return Status(State.PENDING, "its node was lost; Slurm is about to queue it again")
    state = queue.decisive(states)
    if state == "CANCELLED":
        return Status(State.CANCELLED, "cancelled with scancel", nodes)
    if ago < _SETTLE_S and states & _TAKEN:
        return Status(State.PENDING, "its nodes were taken; Slurm is about to queue it again")
    if ago < _SETTLE_S and state == "COMPLETED":
        return Status(State.RUNNING, nodes=nodes)  # the exit record is not visible on this machine yet
    return _failed(state, nodes)


def _from_accounting(job: Record, folder: Path) -> Status:
    """The status of a job that squeue no longer lists, or that belongs to another cluster."""
    if job.cluster and (here := queue.cluster_name()) and here != job.cluster:
        return Status(
            State.UNKNOWN,
            f"it was sent to cluster {job.cluster}, and SLURM_CONF leads to {here}: set SLURM_CONF to the job's cluster",
        )
    if time.time() - job.submitted < _SETTLE_S / 6:
        return Status(State.PENDING, "just submitted")
    try:
        state = queue.accounted_state(job.id, job.name.partition("/")[0], job.submitted)
    except Unreachable:
        state = ""
    state = state or _taken(folder)  # no accounting, or accounting only has another job with the same id
    if state in _WAITING | _ACTIVE | {_REVOKED}:  # accounting can be minutes late
        return Status(State.UNKNOWN, f"squeue does not know it, and sacct still says {state}")
    return Status(State.CANCELLED, "cancelled with scancel") if state == "CANCELLED" else _failed(state)


def _failed(state: str, nodes: tuple[str, ...] = ()) -> Status:
    text = _FAILURES.get(state, "see batch.log")
    return Status(State.FAILED, f"{state}: {text}" if state else text, nodes)


def _seconds_since(when: str) -> float:
    try:
        return (datetime.now() - datetime.fromisoformat(when)).total_seconds()
    except ValueError:
        return 0.0


SCHEDULER = SlurmScheduler
