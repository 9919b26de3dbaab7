"""Start a command for a run folder with a scheduler, or print the script that the scheduler would get."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import record
from cluster.job import Job
from cluster.plan import Plan, print_plan
from cluster.record import MAIN, JobNotFound
from cluster.resources import Resources, by_component
from cluster.scheduler import Member, Submission, SubmissionRefused
from cluster.schedulers import is_printed, scheduler_of
from cluster.states import State

Command = Sequence[str]


class RunBusy(RuntimeError):
    """The run folder's last job has not ended, or may not have ended. A second writer would corrupt the run's metrics."""

    def __init__(self, message: str, state: State = State.RUNNING):
        super().__init__(message)
        self.state = state


def submit(
    command: Command | Mapping[str, Command],
    run: Path | str,
    where: str = "local",
    resources: Resources | Mapping | str | Path | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Job | Plan:
    """Run a command for a run folder, and return at once.

    command: the words of a command, or several commands by component name (a hetjob on Slurm). The last component is the main
    component: the job ends with the main component, and fails when any component fails. where: a scheduler's name ('local',
    'slurm', or a name registered by ALIGNER_SCHEDULERS), or 'auto', the first scheduler with other machines that answers, else
    this machine. 'print' starts nothing: it prints the batch script of Slurm ('print:NAME': of another scheduler) and returns
    the script as a Plan. resources: for all components, or by component, or a YAML file's name. env: additional variables.

    Raises ValueError for a mistake found before anything starts, and RunBusy unless the run's last job is known to have ended.
    """
    scheduler, run, components = scheduler_of(where), Path(run).absolute(), words_of(command)
    shares = by_component(resources, list(components))
    scheduler.refuse_unsupported(components, shares)
    name = named(name or run.name)
    if not is_printed(where):
        refuse_if_busy(run)
    folder = record.next_submission_folder(run) if is_printed(where) else record.new_submission_folder(run)
    variables = {key: str(value) for key, value in (env or {}).items()}
    submission = Submission(name, {name: Member(run, folder, components)}, folder, shares, variables)
    if is_printed(where):
        return print_plan(scheduler, submission, run)
    record.clear_stop(run)
    try:
        (handle,) = scheduler.submit(submission)
    except SubmissionRefused:
        shutil.rmtree(folder)
        raise
    record.write(run, handle)
    return Job(run, handle)


def refuse_if_busy(run: Path) -> None:
    """Raises RunBusy unless the run's last job, if there was one, is known to have ended."""
    try:
        job = Job.attach(run)
    except JobNotFound:
        return
    status = job.status
    if status.state.final:
        return
    if status.state == State.UNKNOWN:
        place = f"{job.record.where} {job.id}: {status.reason}"
        cure = (
            "the job may still run, so try again when its state is known, choose another run folder or, if the job has "
            f"certainly ended, remove {record.job_folder(run) / 'job.json'}"
        )
    else:
        place = f"{job.record.where} {job.id}"
        cure = "follow the job with Job.attach(run), end the job with .stop() or .cancel(), or choose another run folder"
    raise RunBusy(f"{run} already has a job, {status.state} ({place}): {cure}", status.state)


def named(name: str) -> str:
    """The name of a job. Raises ValueError for a name with a slash, which separates a sweep's name from a member's."""
    if "/" in name:
        raise ValueError(f"name={name!r}: a job's name must not contain '/'")
    return name


def words_of(command: Command | Mapping[str, Command]) -> dict[str, list[str]]:
    """The words of each component's command.

    Raises ValueError for a plain string, for an empty command, and for an invalid component name.
    """
    commands = command if isinstance(command, Mapping) else {MAIN: command}
    if not commands:
        raise ValueError("there is no command to run")
    for name, words in commands.items():
        if isinstance(words, str) or not words:
            raise ValueError(
                f"command {words!r} must be a sequence of words, for example ['python', 'train.py']"
            )
        if not name.isidentifier():
            raise ValueError(
                f"component {name!r}: the name goes into file names: use only letters, digits and _"
            )
    return {name: [str(word) for word in words] for name, words in commands.items()}
