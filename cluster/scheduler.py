"""What a scheduler is: a class with `submit`, `status`, `cancel`, `requeue` and `script`.

`cluster/local.py` and `cluster/slurm.py` hold the two that come with the project. `cluster/schedulers.py` finds them by
name, and a scheduler of your own, which the environment variable ALIGNER_SCHEDULERS names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.findings import Finding
from cluster.record import Record
from cluster.resources import Resources
from cluster.states import Status


class SubmissionRefused(ValueError):
    """A scheduler does not run this job; the message says why."""


@dataclass(frozen=True)
class Member:
    """One run: its folder, the folder of this submission, and the command of each component."""

    run: Path
    folder: Path
    components: Mapping[str, list[str]]
    """By name; the run ends when the last one ends."""


@dataclass(frozen=True)
class Submission:
    """One job: a single run, or an array of runs that differ in their commands."""

    name: str
    members: Mapping[str, Member]
    """The runs by name. A job that is no array has one, under the job's name."""
    folder: Path
    """Files of the whole job. A job that is no array has the folder of its only member."""
    resources: Mapping[str, Resources]
    """For each component."""
    variables: Mapping[str, str]
    """Environment variables of the job, in addition to those that every job gets (`environment.own_variables`)."""
    parallel: int = 0
    """How many members of an array run at a time; 0: as many as there is room for."""

    @property
    def is_array(self) -> bool:
        """Whether the job consists of several runs."""
        return len(self.members) > 1

    @property
    def only_member(self) -> Member:
        """The run of a job that is no array."""
        (member,) = self.members.values()
        return member

    @property
    def nodes(self) -> int:
        """Nodes of one run, over all components."""
        return sum(share.nodes for share in self.resources.values())

    @property
    def gpus(self) -> int:
        """GPUs of one run, over all components."""
        return sum(share.gpus for share in self.resources.values())

    def record(self, where: str, member: str, job_id: str, **details: object) -> Record:
        """The record of one member, from which any process finds the job again.

        where: the scheduler's name. details: further fields of Record, such as `mark`.
        """
        run = self.members[member]
        return Record(
            where=where,
            id=job_id,
            name=f"{self.name}/{member}" if self.is_array else self.name,
            folder=str(run.folder.relative_to(run.run)),
            components=dict(run.components),
            nodes=self.nodes,
            gpus=self.gpus,
            **details,
        )


class Scheduler(ABC):
    """Starts jobs and follows them. It keeps no state: all that it needs later is in the run folder and in the record."""

    name: str
    """What `where=` calls it."""
    title: str
    """What messages call it."""
    poll_s: float = 0.5
    """Seconds between two looks at a job that somebody waits for."""
    on_this_machine: bool = False
    """Whether jobs run beside the process that submits them. Then a job without resources takes what its settings say, and
    the jobs of one machine choose their ports themselves."""
    runs_hetjobs: bool = False
    """Whether one job may have several components, each with resources of its own."""
    runs_arrays: bool = False
    """Whether one job may have several members."""

    @abstractmethod
    def submit(self, submission: Submission) -> list[Record]:
        """Start the job and return at once with a record for each member, in the members' order.

        All folders of the submission exist. Raises SubmissionRefused when the scheduler does not take the job.
        """

    @abstractmethod
    def status(self, run: Path, job: Record) -> Status:
        """The job's state now. A scheduler that does not answer is State.UNKNOWN, and no exception."""

    @abstractmethod
    def cancel(self, run: Path, job: Record) -> None:
        """End all processes of the job. Raises ValueError or RuntimeError when that is not possible."""

    @abstractmethod
    def requeue(self, run: Path, job: Record) -> None:
        """Have the job save a checkpoint, end, and wait in the queue again. Raises ValueError where there is no queue."""

    @abstractmethod
    def script(self, submission: Submission) -> str:
        """The text that `submit` would hand over. Writes no file and asks no server."""

    def unavailable(self) -> str:
        """Why no job can be submitted from this machine; "" when jobs can be submitted."""
        return ""

    def check(self, resources=None, shared: Path | str = ".", probe: bool = True) -> list[Finding]:
        """Whether a job with these resources would run.

        resources: what `cluster.submit` takes. shared: the folder that the run folders will be in. probe: also start a
        small job that looks at a compute node.
        """
        reason = self.unavailable()
        return [Finding(self.title, not reason, reason or "jobs can be submitted")]

    def refuse_unsupported(
        self, components: Mapping[str, object], resources: Mapping[str, Resources]
    ) -> None:
        """Raises SubmissionRefused for a job of a shape that this scheduler never runs. Asks no server."""
        if len(components) > 1 and not self.runs_hetjobs:
            raise SubmissionRefused(
                f"where={self.name!r}: {self.title} runs no job of several components ({', '.join(components)}); "
                "put them into one component, or submit each to a run folder of its own"
            )
