"""A sweep: an array job with a run for each of several values, a run folder for each member, and a table of results."""

import html
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import logs, record
from cluster.job import NEWS_S, Job
from cluster.plan import Plan, print_plan
from cluster.record import MAIN
from cluster.resources import Resources, by_component
from cluster.scheduler import Member, Submission, SubmissionRefused
from cluster.schedulers import is_printed, scheduler_of
from cluster.states import State
from cluster.submission import named, refuse_if_busy, words_of

_POLL_S = 0.5


@dataclass(frozen=True)
class Sweep:
    """The jobs of a sweep's members, by name."""

    run: Path
    jobs: Mapping[str, Job]

    @classmethod
    def attach(cls, run: Path | str) -> "Sweep":
        """The sweep whose members are in this folder. Raises JobNotFound when there is none."""
        names = record.read_json(record.job_folder(Path(run)) / "sweep.json")
        if names is None:
            raise record.JobNotFound(f"no sweep was submitted in {run}")
        return cls(Path(run).absolute(), {name: Job.attach(Path(run) / name) for name in names["members"]})

    @property
    def states(self) -> dict[str, State]:
        """Each member's current state."""
        return {name: job.state for name, job in self.jobs.items()}

    def wait(self, timeout: float | None = None) -> dict[str, State]:
        """Block until every member has ended, and print the members' steps every 20 seconds. timeout: seconds.

        A failed member raises nothing; `states` shows the failure. Raises TimeoutError.
        """
        printed = time.monotonic()
        deadline = None if timeout is None else printed + timeout
        states = self.states
        while not all(state.final for state in states.values()):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout} s the sweep has not ended and goes on: {states}")
            time.sleep(_POLL_S)
            if time.monotonic() - printed >= NEWS_S:
                printed = time.monotonic()
                print("; ".join(job.news() for job in self.jobs.values()), flush=True)
            states = self.states
        return states

    def cancel(self) -> None:
        """Cancel every member."""
        for job in self.jobs.values():
            job.cancel()

    def table(self, metrics: Sequence[str] = ()) -> list[dict]:
        """A row for each member: name, state, and the last value of each metric (None for a missing metric)."""
        rows = []
        for name, job in self.jobs.items():
            last = last_values(job.run / "metrics.jsonl")
            columns = metrics or [key for key in last if key not in ("step", "time")]
            values = {metric: last.get(metric) for metric in columns}
            rows.append({"member": name, "state": str(job.state), "step": last.get("step"), **values})
        return rows

    def _repr_html_(self) -> str:
        rows = self.table()
        names = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[_cell(row.get(name)) for name in names] for row in rows]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in cells)
        return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    return "" if value is None else html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def last_values(metrics: Path, lines: int = 200) -> dict:
    """The last value of every metric in the last lines of a metrics file. Incomplete lines are skipped."""
    values: dict = {}
    for line in logs.tail(metrics, lines).splitlines():
        try:
            values |= json.loads(line)
        except ValueError:
            continue
    return values


def submit_sweep(
    commands: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]],
    run: Path | str,
    where: str = "slurm",
    resources: Resources | Mapping | str | Path | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
    parallel: int = 0,
) -> Sweep | Plan:
    """Submit an array job of several runs, in `run/MEMBER` for each name in `commands`.

    parallel: members that run at a time; 0: as many as the cluster has room for. where: a scheduler with arrays, such as
    'slurm'; 'print' prints the batch script. Raises ValueError for a mistake found before anything starts (hetjobs cannot be
    arrays), RunBusy unless the last jobs of all members are known to have ended, and SubmissionRefused.
    """
    scheduler, run = scheduler_of(where), Path(run).absolute()
    if not scheduler.runs_arrays:
        raise ValueError(
            f"where={where!r}: a sweep is an array job, which {scheduler.title} does not have: submit the runs one "
            "by one"
        )
    words = _words_of_members(commands)
    resources = by_component(resources, [MAIN])
    name = named(name or run.name)
    variables = {key: str(value) for key, value in (env or {}).items()}
    new_folder = record.next_submission_folder if is_printed(where) else record.new_submission_folder
    if not is_printed(where):
        for member in words:
            refuse_if_busy(run / member)
    members = {
        member: Member(run / member, new_folder(run / member), parts) for member, parts in words.items()
    }
    submission = Submission(name, members, new_folder(run), resources, variables, parallel)
    if is_printed(where):
        return print_plan(scheduler, submission, run)
    for member in members.values():
        record.clear_stop(member.run)
    try:
        handles = dict(zip(members, scheduler.submit(submission), strict=True))
    except SubmissionRefused:
        for folder in (submission.folder, *(member.folder for member in members.values())):
            shutil.rmtree(folder)
        raise
    for member, handle in handles.items():
        record.write(run / member, handle)
    record.write_json(record.job_folder(run) / "sweep.json", {"members": list(members)})
    return Sweep(run, {member: Job(run / member, handle) for member, handle in handles.items()})


def _words_of_members(commands: Mapping) -> dict[str, dict[str, list[str]]]:
    """The command of each member, as returned by `words_of`. Raises ValueError for commands that cannot be an array."""
    words = {member: words_of(command) for member, command in commands.items()}
    if several := next((member for member, parts in words.items() if list(parts) != [MAIN]), None):
        raise ValueError(
            f"the sweep's run {several} has the components {', '.join(words[several])}, but Slurm has no arrays of "
            "hetjobs: submit the runs one by one"
        )
    if len(words) < 2:
        raise ValueError(
            f"a sweep needs two or more runs, but has {', '.join(words) or 'none'}: start a single run with submit"
        )
    return words
