"""Start a command for a run folder: on this machine or on Slurm, or print the batch script."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import processes, record
from cluster.environment import job_environment
from cluster.job import Job
from cluster.record import MAIN, JobNotFound, Record
from cluster.resources import Resources, by_component

Command = Sequence[str]
PLACES = ("local", "slurm", "print")


class RunBusy(RuntimeError):
    """The run folder's last job has not ended; a second writer would corrupt its metrics."""


def submit(
    command: Command | Mapping[str, Command],
    run: Path | str,
    where: str = "local",
    resources: Resources | Mapping | str | Path | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
) -> "Job | Plan":  # noqa: F821
    """Run a command for a run folder, and return at once.

    command: its words, or several commands by component name (a hetjob on Slurm). The last component is the
    main one: the job ends with it, and fails when any component fails. resources: for all components, or by
    component, or a YAML file's name. env: additional variables. where='print' starts nothing: it prints the
    batch script and returns it as a Plan.

    Raises ValueError for a mistake found before anything starts, and RunBusy when the run's last job has not
    ended.
    """
    if where not in PLACES:
        raise ValueError(f"where={where!r}; known are {', '.join(PLACES)}")
    run = Path(run).absolute()
    components = words_of(command)
    wanted = by_component(resources, list(components))
    variables = {key: str(value) for key, value in (env or {}).items()}
    name = name or run.name
    if "/" in name:
        raise ValueError(f"name={name!r}: a job's name holds no '/'")
    if where == "print":
        from cluster.plan import plan

        return plan(components, run, wanted, variables, name)
    refuse_if_busy(run)
    start = _start_local if where == "local" else _start_slurm
    return start(components, run, wanted, variables, name)


def refuse_if_busy(run: Path) -> None:
    """Raises RunBusy unless the run's last job, if there was one, has ended."""
    try:
        job = Job.attach(run)
    except JobNotFound:
        return
    status = job.status
    if not status.state.final and status.state != "UNKNOWN":
        raise RunBusy(
            f"{run} has a job that is {status.state} ({job.record.where} {job.id}): follow it with "
            "Job.attach(run), end it with .stop() or .cancel(), or choose another run folder"
        )


def words_of(command: Command | Mapping[str, Command]) -> dict[str, list[str]]:
    """The words of each component's command.

    Raises ValueError for a plain string, for an empty command, and for an invalid component name.
    """
    commands = command if isinstance(command, Mapping) else {MAIN: command}
    if not commands:
        raise ValueError("no command to run")
    for name, words in commands.items():
        if isinstance(words, str) or not words:
            raise ValueError(
                f"command {words!r} should be a sequence of words, such as ['python', 'train.py']"
            )
        if not name.isidentifier():
            raise ValueError(f"component {name!r}: its name goes into file names; use letters, digits and _")
    return {name: [str(word) for word in words] for name, words in commands.items()}


def _start_local(components, run: Path, wanted: dict[str, Resources], variables: dict, name: str) -> Job:
    from cluster.local import DetachedExecutor

    if several := [f"{part}: {share.nodes}" for part, share in wanted.items() if share.nodes > 1]:
        raise ValueError(f"where='local' is one node, but resources ask for more ({', '.join(several)})")
    folder = record.new_submission_folder(run)
    spec = [
        {"name": part, "command": words, "ranks": wanted[part].tasks} for part, words in components.items()
    ]
    linger = max(share.linger_s for share in wanted.values())
    record.write_json(folder / "spec.json", {"components": spec, "linger_s": linger})
    record.clear_stop(run)
    environment = {**job_environment(), **variables, processes.JOB_VARIABLE: str(folder)}
    started = DetachedExecutor(folder, environment).start()
    handle = Record(
        where="local",
        id=started.job_id,
        name=name,
        folder=str(folder.relative_to(run)),
        components=components,
        identity=processes.identity(int(started.job_id)) or "",
        gpus=sum(share.gpus for share in wanted.values()),
    )
    record.write(run, handle)
    return Job(run, handle)


def _start_slurm(components, run: Path, wanted: dict[str, Resources], variables: dict, name: str) -> Job:
    from cluster import slurm
    from cluster.sbatch import Member

    folder = record.new_submission_folder(run)
    record.clear_stop(run)
    member = Member(run, folder, components)
    try:
        (handle,) = slurm.start({name: member}, folder, wanted, variables, name)
    except slurm.SubmissionRefused:
        shutil.rmtree(folder)
        raise
    return Job(run, handle)
