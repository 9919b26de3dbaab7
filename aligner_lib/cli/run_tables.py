"""Tables of runs on a terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aligner_lib.config.kinds import kinds
from aligner_lib.errors import UserError
from aligner_lib.run_folder.files import UnreadableFileError, read_object
from aligner_lib.run_folder.reader import RunFolder, find_runs, step_of
from aligner_lib.run_folder.set_aside import way_back

if TYPE_CHECKING:
    from cluster import Job
    from cluster.states import Status

STATUS_COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "lost": "red"}


def list_runs(root: Path) -> None:
    """Print a line for each run: path, kind, status, step, age of the heartbeat, and start time.

    Runs whose job has not started come first, with the scheduler's reason. Raises UserError if there are no runs.
    """
    waiting, started = _waiting(root), find_runs(root)
    if not waiting + started:
        raise UserError(f"no runs in {root}/; `aligner tutorial`, `sft`, `rm`, `ppo` and the like make them")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("run", "kind", "status", "step", "heartbeat", "began"):
        justify = "right" if column in ("step", "heartbeat") else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for run in waiting:
        table.add_row(escape(str(run.path)), "–", _described(_job_status(run)), "–", "–", "–")
    for run in started:
        info = run.info
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.get("created", 0)))
        status = _next_attempt(run) or _status(run)
        table.add_row(
            escape(str(run.path)), escape(run.kind), status, _progress(info), _heartbeat(run), began
        )
    Console().print(table)


def show_run(run: RunFolder) -> None:
    """Print a run's kind, status, step, checkpoints, and the latest value of each metric."""
    console, info = Console(), run.info
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name in ("kind", "seed", "host", "pid", "git_commit"):
        if info.get(name) is not None:
            facts.add_row(name, str(info[name]))
    if parent := info.get("parent"):
        facts.add_row("branch", escape(f"of {parent['name']}, after step {parent['step']}"))
    for name, use in ((info.get("config") or {}).get("functions") or {}).items():
        file = use or "a function that the recording does not contain"
        facts.add_row(f"functions.{name}", escape(f"{file}, in place of {_own(run.kind, name)}"))
    message = f" ({escape(info['message'])})" if info.get("message") else ""
    facts.add_row("status", _next_attempt(run) or _status(run) + message)
    if advice := way_back(run):
        facts.add_row("way back", escape(advice))
    facts.add_row("step", _progress(info))
    if info and not run.is_over:
        facts.add_row("last sign of life", f"{run.heartbeat_age:.0f} s ago")
    for warning in info.get("warnings", []):
        facts.add_row("warning", escape(warning))
    facts.add_row("checkpoints", ", ".join(path.name for path in run.checkpoints()) or "none yet")
    if best := run.best_checkpoint():
        facts.add_row("the best", best.name)
    console.print(f"[bold]{escape(str(run.path))}[/bold]")
    console.print(facts)
    _show_metrics(console, run)


def _own(kind: str, name: str) -> str:
    """The library's function that the run's own function replaces."""
    of_kind = kinds()[kind].functions if kind in kinds() else {}
    return of_kind.get(name, "a function that this version does not have").replace(":", ".")


def _show_metrics(console: Console, run: RunFolder) -> None:
    latest = {
        metric: (value, record["step"])
        for record in run.metrics()
        for metric, value in record.items()
        if metric not in ("step", "time") and isinstance(value, int | float)
    }
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("metric")
    table.add_column("latest", justify="right")
    table.add_column("at step", justify="right")
    for metric, (value, step) in sorted(latest.items()):
        table.add_row(escape(metric), f"{value:.6g}", str(step))
    if latest:
        console.print(table)


def find_run(name: str, root: Path) -> RunFolder:
    """Return the run at a path, or the newest run with this name below the root.

    Raises UserError, which lists the newest runs, if there is no such run.
    """
    for path in (Path(name).expanduser(), root / name):
        if (path / "run.json").exists() or (path / "job" / "job.json").exists():
            return RunFolder(path if path.name not in ("", "..") else path.resolve())
    started = find_runs(root)
    for candidate in (*started, *_waiting(root)):
        if candidate.name == name:
            return candidate
    known = ", ".join(str(run.path.relative_to(root)) for run in started[:5]) or "none"
    raise UserError(f"there is no run {name!r}: the newest runs in {root}/ are: {known}")


def _waiting(root: Path) -> list[RunFolder]:
    """Runs with a job but without a run.json.

    The job waits in a queue, has just started, or ended before writing run.json.
    """
    folders = [
        path.parents[1] for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}*/job/job.json")
    ]
    return [RunFolder(path) for path in sorted(folders) if not (path / "run.json").exists()]


def _status(run: RunFolder) -> str:
    status = run.status
    return f"[{STATUS_COLOURS.get(status, 'white')}]{escape(status)}[/]"


def _next_attempt(run: RunFolder) -> str:
    """The scheduler's state of a job whose first or next attempt has not begun; "" for other runs.

    For example: `pending (Resources), resumes from step 4`.
    """
    if not run.info:
        return _described(_job_status(run)) if (run.path / "job" / "job.json").exists() else ""
    if run.status in ("running", "finished") or (job := run.latest_job()) is None:
        return ""
    status = _status_of(job)
    if status.state == "PENDING":
        step = step_of(run.latest_checkpoint())
        return _described(status) + (f", resumes from step {step}" if step else "")
    return _described(status) if status.state == "RUNNING" and _has_begun_since(run, job) else ""


def _has_begun_since(run: RunFolder, job: Job) -> bool:
    """Whether an attempt of the job has begun since run.json was written. Otherwise only another component still runs.

    At its begin, and not before its end again, an attempt makes files in the job's folder.
    """
    return job.folder.is_dir() and job.folder.stat().st_mtime > (run.path / "run.json").stat().st_mtime


def _job_status(run: RunFolder) -> Status:
    """The status of a run's job; UNKNOWN if the job's record is damaged, or names a scheduler that is not known here."""
    from cluster import Job, State
    from cluster.record import Record
    from cluster.states import Status

    try:  # a damaged file must not hide the other runs
        handle = Record(**read_object(run.path / "job" / "job.json"))
    except (OSError, TypeError, UnreadableFileError):
        return Status(State.UNKNOWN, "its job/job.json is damaged")
    try:
        job = Job(run.path, handle)
    except ValueError as error:
        return Status(State.UNKNOWN, str(error))
    return _status_of(job)


def _status_of(job: Job) -> Status:
    """A job's status; UNKNOWN if its exit record is damaged, for example by a full disk."""
    from cluster.states import State, Status

    try:
        with suppress(FileNotFoundError):
            read_object(job.folder / "exit.json")
        return job.status
    except (OSError, ValueError, TypeError, LookupError):
        return Status(State.UNKNOWN, f"its {job.record.folder}/exit.json is damaged")


def _described(status: Status) -> str:
    return status.state.lower() + (f" ({escape(str(status.reason))})" if status.reason else "")


def _heartbeat(run: RunFolder) -> str:
    """The age of the last heartbeat of a run without a final status."""
    if run.status not in ("running", "lost"):
        return "–"
    age = run.heartbeat_age
    units = (("d", 86_400), ("h", 3_600), ("min", 60))
    return next((f"{age / size:.0f} {unit}" for unit, size in units if age >= 2 * size), f"{age:.0f} s")


def _progress(info: dict) -> str:
    step, of = (info.get("heartbeat") or {}).get("step"), info.get("max_steps")
    return "–" if step is None else escape(f"{step}/{of}" if of else str(step))
