"""A common handle for jobs of all schedulers."""

import asyncio
import html
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

from cluster import logs, record
from cluster.record import Record
from cluster.schedulers import scheduler_of
from cluster.states import State, Status

_LINES_IN_ERROR = 20
NEWS_S = 20.0
"""Seconds between two lines that a wait for a job prints."""


class JobFailed(RuntimeError):
    """The command failed. The message has the reason, the exception that the command printed, and the command's last lines."""

    def __init__(self, job: "Job", status: Status):
        self.run, self.state, self.returncode = job.run, status.state, status.returncode
        self.last_lines = job.failure_lines(status)
        self.exception_line = logs.exception_line(self.last_lines)
        head = f"{job.name} failed: {self.exception_line or status.reason}"
        log = job.log_of(status.component or job.record.main, status.rank)
        super().__init__(f"{head}\n  {status.reason}; log: {log}\n{self.last_lines}")


class Job:
    """A submitted command: its state, its log, and methods to wait for the job or end the job.

    All data of a job is in the run folder, so any process with access to the folder can create a Job: `Job.attach(run)`.
    """

    def __init__(self, run: Path | str, handle: Record):
        self.run = Path(run).absolute()
        self.record = handle
        self._scheduler = scheduler_of(handle.where)

    @classmethod
    def attach(cls, run: Path | str) -> "Job":
        """The last job that was submitted for this run folder. Raises JobNotFound when there is none."""
        return cls(run, record.read(Path(run)))

    @property
    def id(self) -> str:
        """The pid of the local supervisor, or the scheduler's job id."""
        return self.record.id

    @property
    def name(self) -> str:
        """The job's name; by default the run folder's name."""
        return self.record.name

    @property
    def folder(self) -> Path:
        """The folder of this submission: logs, batch script, exit record."""
        return self.run / self.record.folder

    @property
    def status(self) -> Status:
        """State, reason, nodes and estimated start, as the scheduler reports them now."""
        return self._scheduler.status(self.run, self.record)

    @property
    def state(self) -> State:
        """The current state."""
        return self.status.state

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the job's nodes."""
        return self.status.nodes

    @property
    def gpus(self) -> int:
        """The number of GPUs that were requested."""
        return self.record.gpus

    @property
    def reason(self) -> str:
        """The reason why the job is pending, or the reason of its end."""
        return self.status.reason

    @property
    def start_estimate(self) -> str:
        """The scheduler's estimate of a pending job's start, in its own time format; "" without an estimate."""
        return self.status.start

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the trainer's last heartbeat in run.json; None before the first heartbeat."""
        beat = record.run_info(self.run).get("heartbeat") or {}
        return time.time() - beat["time"] if "time" in beat else None

    @property
    def log_path(self) -> Path:
        """stdout and stderr of the main component's rank 0. The other logs are in the same folder."""
        return self.log_of(self.record.main)

    def log_of(self, component: str, rank: int = 0) -> Path:
        """The log of a rank of a component."""
        assert component in self.record.components, f"{component!r} is none of {list(self.record.components)}"
        return record.log_path(self.folder, component, rank)

    def tail(self, n: int = 20) -> str:
        """The last n lines of the log."""
        return logs.tail(self.log_path, n)

    def logs(self, follow: bool = False, component: str = "") -> Iterator[str]:
        """The log's lines; with follow=True also new lines, until the job has ended. component: "" is the main component."""
        path = self.log_of(component or self.record.main)
        if follow:
            return logs.follow(path, self._ended, partial(time.sleep, 0.2))
        return iter(logs.tail(path, 10**9).splitlines())

    def failure_lines(self, status: Status, n: int = _LINES_IN_ERROR) -> str:
        """The last n lines of the log that explains a failure.

        The log is the failed rank's log. If that log is empty, it is srun's, the main component's or the batch script's.
        """
        component = status.component or self.record.main
        paths = [self.log_of(component, status.rank), self.folder / f"{component}.srun.log"]
        texts = [logs.tail(path, n) for path in [*paths, self.log_path, self.folder / "batch.log"]]
        return next((text for text in texts if text.strip()), "(nothing was logged)")

    def wait(self, timeout: float | None = None) -> State:
        """Block until the job has ended, and return its state. timeout: seconds.

        A long wait prints the job's step every 20 seconds. Raises JobFailed when the command failed, and TimeoutError after the
        timeout. The job continues after a TimeoutError.
        """
        for pause in self._pauses(timeout):
            time.sleep(pause)
        return self._final()

    def __await__(self) -> Generator[object, None, State]:
        return self.wait_async().__await__()

    async def wait_async(self, timeout: float | None = None) -> State:
        """Like `wait`, without blocking the event loop: widgets and other cells continue."""
        pauses = self._pauses(timeout)
        # In a thread, because an unreachable scheduler answers only after seconds.
        while (pause := await asyncio.to_thread(next, pauses, None)) is not None:
            await asyncio.sleep(pause)
        return await asyncio.to_thread(self._final)

    def cancel(self) -> State:
        """Kill the job with all its processes. In contrast, `stop` ends the job with a checkpoint."""
        if not self.state.final:
            self._scheduler.cancel(self.run, self.record)
        return self.state

    def stop(self) -> None:
        """Ask the run to save a checkpoint and end within one step."""
        record.request_stop(self.run)

    def requeue(self) -> None:
        """Save a checkpoint, end, and wait in the queue again. Raises ValueError without a queue, or when the job does not run."""
        self._scheduler.requeue(self.run, self.record)

    def _ended(self) -> bool:
        return self.state.final

    def _pauses(self, timeout: float | None) -> Iterator[float]:
        """Seconds to sleep between two polls, until the state is final. Raises TimeoutError."""
        begun = printed = time.monotonic()
        deadline = None if timeout is None else begun + timeout
        while not self._ended():
            if (now := time.monotonic()) - printed >= NEWS_S:
                printed = now
                print(f"{self.news()}, after {now - begun:.0f} s", flush=True)
            left = self._scheduler.poll_s if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{self.name} is still {self.state} after {timeout} s and goes on ({self.run})"
                )
            yield min(self._scheduler.poll_s, left)

    def news(self) -> str:
        """The job's state with the reason, and its last step, as the line of a long wait has them."""
        info, status = record.run_info(self.run), self.status
        step, last = (info.get("heartbeat") or {}).get("step"), info.get("max_steps")
        reason = f" ({status.reason})" if status.reason else ""
        return f"{self.name} is {status.state}{reason}" + (
            f", step {step} of {last}" if step and last else ""
        )

    def _final(self) -> State:
        status = self.status
        if status.state == State.FAILED:
            raise JobFailed(self, status)
        return status.state

    def __repr__(self) -> str:
        status = self.status
        parts = [
            status.state,
            self.record.where,
            self.id,
            *([",".join(status.nodes)] if status.nodes else []),
        ]
        start = f"estimated start {status.start}" if status.start else ""
        reason = f" ({'; '.join(filter(None, [status.reason, start]))})" if status.reason or start else ""
        return f"<Job {self.name}: {' '.join(parts)}{reason}>"

    def _repr_html_(self) -> str:
        status = self.status
        facts = [self.record.where, f"id {self.id}", ", ".join(status.nodes), status.reason]
        if status.start:
            facts.append(f"estimated start {status.start}")
        if (age := self.heartbeat_age) is not None and not status.state.final:
            facts.append(f"heartbeat {age:.0f} s ago")
        text = " · ".join(html.escape(fact) for fact in facts if fact)
        name, run = html.escape(self.name), html.escape(str(self.run))
        return f"<div><b>{name}</b> {status.state} <small>{text}<br><code>{run}</code></small></div>"
