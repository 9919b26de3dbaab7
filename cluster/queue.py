"""Slurm's answers about jobs: from `squeue`, or from `sacct` for jobs that squeue no longer lists.

squeue is asked first because its answers are current. A single call of squeue serves all jobs that the process follows.
"""

import os
import subprocess
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from cluster import environment

_TIMEOUT_S = 10
_FRESH_S = (1.0, 15.0)  # how long an answer is reused: a second at first, longer while nothing changes
_FORMAT = "%i|%T|%N|%S|%e|%r|%k|%o"
_ACCOUNTING_FORMAT = "JobID,State,NodeList,JobName,Submit,ExitCode"
# The ends of a hetjob's components, a cause before its consequences: Slurm cancels the other components, and the batch script fails.
_ENDS = (
    *("OUT_OF_MEMORY", "TIMEOUT", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED"),
    *("CANCELLED", "FAILED", "COMPLETED"),
)


@dataclass(frozen=True)
class Entry:
    """A component of a job, as squeue lists the component."""

    id: str
    """12, 12+0 (a hetjob's component), 12_3 (an array's member)."""
    state: str
    """Slurm's state: PENDING, RUNNING, COMPLETING, TIMEOUT, …"""
    nodes: str = ""
    start: str = ""
    end: str = ""
    reason: str = ""
    marks: str = ""
    """The job's comment and the path of its batch script, with | between. `submit` writes the submission's folder into both,
    and a site's plugins may replace the comment."""

    @property
    def job(self) -> str:
        """The job id without the component: 12+0 → 12."""
        return self.id.partition("+")[0]

    def is_of(self, folder: str) -> bool:
        """Whether the job comes from this submission's folder. Another cluster, or a later time, has other jobs with the same id."""
        return self.marks.startswith(f"{folder}|") or f"|{folder}/" in self.marks


class Unreachable(RuntimeError):
    """The Slurm controller does not answer, so the state of the job is unknown."""


def run_tool(*words: str) -> subprocess.CompletedProcess:
    """Run one of Slurm's client commands. Raises Unreachable when the command is missing or does not answer.

    Without the user's defaults, such as SLURM_TIME_FORMAT, which would change the answer.
    """
    variables = environment.job_environment()
    try:
        return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        raise Unreachable(f"{words[0]} is not on the machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{words[0]} did not answer within {_TIMEOUT_S} s") from None


def parse_squeue(text: str) -> list[Entry]:
    """Entries from squeue's lines in _FORMAT. The marks are the last field, because they contain the separator."""
    return [Entry(*_blank_nothing(line.split("|", 6))) for line in text.splitlines() if line.count("|") >= 6]


def parse_sacct(text: str) -> list[dict[str, str]]:
    """Rows of `sacct -n -P` without steps; 'CANCELLED by 1000' becomes CANCELLED."""
    names = _ACCOUNTING_FORMAT.split(",")
    rows = [
        dict(zip(names, line.split("|"), strict=True)) for line in text.splitlines() if line.count("|") == 5
    ]
    return [{**row, "State": row["State"].split(" ")[0]} for row in rows if "." not in row["JobID"]]


def _blank_nothing(values: list[str]) -> list[str]:
    return ["" if value.strip() in ("N/A", "(null)", "None", "NONE") else value.strip() for value in values]


@dataclass
class Queue:
    """squeue's answers, cached for all jobs that the process follows."""

    _ids: set[str] = field(default_factory=set)
    _answered: set[str] = field(default_factory=set)
    """The ids that the last answer covers."""
    _entries: dict[str, list[Entry]] = field(default_factory=dict)
    _asked_at: float = float("-inf")
    _changed: float = float("-inf")
    _problem: str = ""
    """Why squeue did not answer at `_asked_at`; "" after an answer."""
    _configuration: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def entries(self, job_id: str) -> list[Entry]:
        """The job's components; empty when squeue no longer lists the job. Raises Unreachable.

        A failure is reused for a second, so that a table of many jobs waits only once for a controller that hangs.
        """
        with self._lock:
            # another cluster has other jobs with the same ids
            if self._configuration != os.environ.get("SLURM_CONF", ""):
                self.__init__(_configuration=os.environ.get("SLURM_CONF", ""), _lock=self._lock)
            self._ids.add(job_id)
            now = time.monotonic()
            shelf_life = min(_FRESH_S[1], max(_FRESH_S[0], (now - self._changed) / 10))
            if self._problem and now - self._asked_at < _FRESH_S[0]:
                raise Unreachable(self._problem)
            if self._problem or job_id not in self._answered or now - self._asked_at > shelf_life:
                try:
                    self._ask()
                    self._problem = ""
                except Unreachable as problem:
                    self._problem, self._asked_at = str(problem), time.monotonic()
                    raise
            return self._entries.get(job_id, [])

    def forget(self, job_id: str) -> None:
        """Stop asking squeue about a job that has ended."""
        with self._lock:
            self._ids.discard(job_id)
            self._answered.discard(job_id)
            self._entries.pop(job_id, None)

    def _ask(self) -> None:
        job_ids = sorted({job_id.partition("_")[0] for job_id in self._ids})
        answer = run_tool("squeue", "-a", "-h", "-r", "-t", "all", "-o", _FORMAT, "-j", ",".join(job_ids))
        # For a single forgotten job id, squeue fails with "Invalid job id". For several ids, squeue leaves the forgotten jobs
        # out.
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise Unreachable(answer.stderr.strip() or f"squeue ended with {answer.returncode}")
        entries: dict[str, list[Entry]] = {}
        for entry in parse_squeue(answer.stdout):
            entries.setdefault(entry.job, []).append(entry)
        if entries != self._entries:
            self._changed = time.monotonic()
        self._entries, self._answered, self._asked_at = entries, set(self._ids), time.monotonic()


QUEUE = Queue()


def decisive(states: Collection[str]) -> str:
    """The state of the component that explains the state of the whole job; "" without states."""
    return min(states, key=lambda state: _ENDS.index(state) if state in _ENDS else -1, default="")


def accounted_state(job_id: str, name: str, submitted: float) -> str:
    """The job's decisive state in accounting; "" without accounting or without the job.

    Name and submission time (Unix seconds) must match, because a reinstalled cluster assigns the same ids again.
    """
    answer = run_tool("sacct", "-n", "-P", "-X", "-o", _ACCOUNTING_FORMAT, "-j", job_id)
    if answer.returncode:
        return ""
    earliest = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(submitted - 60))
    rows = [row for row in parse_sacct(answer.stdout) if row["JobName"] == name and row["Submit"] >= earliest]
    return decisive([row["State"] for row in rows])


def cluster_name() -> str:
    """Slurm's ClusterName; "" when the controller does not answer."""
    try:
        lines = run_tool("scontrol", "show", "config").stdout.splitlines()
    except Unreachable:
        return ""
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("ClusterName")), "")
