"""The batch script of a job for printing, without a submission."""

from dataclasses import dataclass
from pathlib import Path

from cluster.scheduler import Scheduler, Submission


@dataclass(frozen=True)
class Plan:
    """A batch script that was not submitted."""

    name: str
    run: Path
    nodes: int
    gpus: int
    text: str

    def wait(self, timeout: float | None = None) -> None:
        """Return immediately, because there is no job to wait for."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Plan {self.name}: {self.nodes} nodes, {self.gpus} GPUs, nothing was submitted>"


def print_plan(scheduler: Scheduler, submission: Submission, run: Path) -> Plan:
    """Print and return the script for the scheduler, with the totals of all members. Writes no file."""
    text = scheduler.script(submission)
    print(text)
    members = len(submission.members)
    return Plan(submission.name, run, members * submission.nodes, members * submission.gpus, text)
