"""The states of a job, the same wherever it runs."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of a job; equal to its name (`job.state == "RUNNING"`)."""

    PENDING = "PENDING"  # waiting for resources, also between a requeue and the next start
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"  # the command ended with exit status 0
    FAILED = "FAILED"  # anything else; Status.reason says what
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # the scheduler does not answer, or the job is on another machine

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class Status:
    """The status of a job at one moment."""

    state: State
    reason: str = ""  # why it is pending, or what ended it
    nodes: tuple[str, ...] = ()
    start: str = ""  # the scheduler's estimate of the start, while pending
    returncode: int | None = None
    component: str = ""  # which part failed first, and which of its ranks
    rank: int = 0
