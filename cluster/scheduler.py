"""The interface of a scheduler: a class with `submit`, `status`, `cancel`, `requeue` and `script`.

`cluster/local.py` and `cluster/slurm.py` are the project's two schedulers. `cluster/schedulers.py` finds them by name, and also
finds your own scheduler when the environment variable ALIGNER_SCHEDULERS names its module.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.findings import Finding
from cluster.record import Record
from cluster.resources import Resources, own_components
from cluster.states import Status


class SubmissionRefused(ValueError):
    """A scheduler does not run the job. The message gives the reason."""


@dataclass(frozen=True)
class Member:
    """A run: its folder, the folder of the submission, and the command of each component."""

    run: Path
    folder: Path
    components: Mapping[str, list[str]]
    """Component name → command. The run ends when the last component ends."""


@dataclass(frozen=True)
class Submission:
    """A job: a single run, or an array of runs with different commands."""

    name: str
    members: Mapping[str, Member]
    """The runs by name. A job without an array has a single member, under the job's name."""
    folder: Path
    """The folder for files of the whole job. Without an array, the folder is the folder of the only member."""
    resources: Mapping[str, Resources]
    """Component name → resources."""
    variables: Mapping[str, str]
    """Environment variables of the job, in addition to the variables of every job (`environment.own_variables`)."""
    parallel: int = 0
    """How many members of an array run at a time; 0: as many as the cluster has room for."""

    @property
    def is_array(self) -> bool:
        """Whether the job consists of several runs."""
        return len(self.members) > 1

    @property
    def only_member(self) -> Member:
        """The run of a job without an array."""
        (member,) = self.members.values()
        return member

    @property
    def nodes(self) -> int:
        """Nodes of a run, over all components."""
        return sum(share.nodes for share in self.resources.values())

    @property
    def gpus(self) -> int:
        """GPUs of a run, over all components."""
        return sum(share.gpus for share in self.resources.values())

    def record(self, where: str, member: str, job_id: str, **details: object) -> Record:
        """The record of a member. Any process can find the job again from the record.

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
    """Starts jobs and follows them. A scheduler keeps no state, because the run folder and the record have all data."""

    name: str
    """The scheduler's name in `where=`."""
    title: str
    """The scheduler's name in messages."""
    poll_s: float = 0.5
    """Seconds between two polls of a job while the caller waits for the job."""
    on_this_machine: bool = False
    """Whether jobs run on the machine of the submitting process. If so, a job without resources takes its resources from its
    settings."""
    runs_hetjobs: bool = False
    """Whether a job may have several components, each with its own resources."""
    runs_arrays: bool = False
    """Whether a job may have several members."""

    @abstractmethod
    def submit(self, submission: Submission) -> list[Record]:
        """Start the job and return at once with a record for each member, in the members' order.

        All folders of the submission exist. Raises SubmissionRefused when the scheduler does not accept the job.
        """

    @abstractmethod
    def status(self, run: Path, job: Record) -> Status:
        """The job's state now. When the scheduler does not answer, the state is State.UNKNOWN, and no exception is raised."""

    @abstractmethod
    def cancel(self, run: Path, job: Record) -> None:
        """End all processes of the job. Raises ValueError or RuntimeError when the processes can't be ended."""

    @abstractmethod
    def requeue(self, run: Path, job: Record) -> None:
        """Make the job save a checkpoint, end, and wait in the queue again. Raises ValueError when the scheduler has no
        queue."""

    @abstractmethod
    def script(self, submission: Submission) -> str:
        """The text that `submit` would hand over. Writes no file and asks no server."""

    def unavailable(self) -> str:
        """The reason why no job can be submitted from this machine; "" when jobs can be submitted."""
        return ""

    def check(self, resources=None, shared: Path | str = ".", probe: bool = True) -> list[Finding]:
        """Check whether a job with these resources would run.

        resources: as for `cluster.submit`. shared: the folder for the run folders. probe: also start a small job that checks a
        compute node.
        """
        reason = self.unavailable()
        findings = [Finding(self.title, not reason, reason or "jobs can be submitted")]
        components = own_components(resources) if resources else {}
        if refusal := self.refusal(components):
            return [*findings, Finding("resources", False, refusal)]
        return findings + [
            Finding(f"resources {name}", True, f"{share.nodes} nodes, {share.gpus} GPUs")
            for name, share in components.items()
        ]

    def refusal(self, resources: Mapping[str, Resources]) -> str:
        """The reason why the scheduler runs no job with these resources, by component; "" when it may run the job."""
        try:
            self.refuse_unsupported(resources, resources)
        except SubmissionRefused as refused:
            return str(refused)
        return ""

    def refuse_unsupported(
        self, components: Mapping[str, object], resources: Mapping[str, Resources]
    ) -> None:
        """Raises SubmissionRefused for a job of a shape that the scheduler never runs. Asks no server."""
        if len(components) > 1 and not self.runs_hetjobs:
            raise SubmissionRefused(
                f"where={self.name!r}: {self.title} runs no job of several components ({', '.join(components)}); "
                "join the components into a single component, or submit each to a run folder of its own"
            )
