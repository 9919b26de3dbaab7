"""The states of a job, the same with every scheduler."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of a job, equal to the state's name (`job.state == "RUNNING"`)."""

    PENDING = "PENDING"  # waiting for resources, also between a requeue and the next start
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"  # the command ended with exit status 0, and was not interrupted
    FAILED = "FAILED"  # any other end; Status.reason has the reason
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # the scheduler does not answer, or the job is on another machine

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class Status:
    """The status of a job at a moment."""

    state: State
    reason: str = ""
    """The reason why the job is pending, does not get on, or is unknown, or the reason of its end."""
    nodes: tuple[str, ...] = ()
    start: str = ""
    """The scheduler's estimate of the start, while the job is pending."""
    returncode: int | None = None
    component: str = ""
    """The component that failed first. `rank` is the number of its failed rank."""
    rank: int = 0


def status_at_end(outcome: Mapping, nodes: tuple[str, ...] = ()) -> Status:
    """The final status from an exit record: {returncode, component, rank, note}.

    A shell reports a process that signal n has ended as exit status 128 + n. The status has −n, as of a process without a shell.
    """
    code, note = outcome["returncode"], outcome.get("note", "")
    if code - 128 in signal.valid_signals():
        code = 128 - code
    if code == 0:
        # with a note, the command was interrupted, and nothing starts the command again
        return Status(State.FAILED if note else State.FINISHED, note, nodes, returncode=0)
    process = f"{outcome['component']} rank {outcome['rank']} " if "component" in outcome else ""
    end = f"ended by {signal_name(code)}" if code < 0 else f"ended with exit status {code}"
    return Status(
        State.FAILED,
        "; ".join(filter(None, [process + end, note])),
        nodes,
        returncode=code,
        component=outcome.get("component", ""),
        rank=outcome.get("rank", 0),
    )


def signal_name(code: int) -> str:
    """The name of the signal in a negative exit code: −9 → 'SIGKILL (out of memory?)'."""
    try:
        name = signal.Signals(-code).name
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"
    return name + " (out of memory?)" if -code == signal.SIGKILL else name
