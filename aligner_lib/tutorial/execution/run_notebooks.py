"""Run the notebooks in order, without a browser, and keep their outputs.

OUT/notebooks/      the executed notebooks
OUT/results/        the results of each notebook, NN.json, written by the notebook
OUT/summary.json    all results, with each notebook's parameters, seconds and memory
OUT/report.html     the notebooks as a single page that opens offline
OUT/pages/          a page for each run, which the report links to
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from aligner_lib.config.compose import nearest, profiles
from aligner_lib.errors import UserError
from aligner_lib.models.disk import explain_read_only
from aligner_lib.run_folder.reader import RunFolder, find_runs
from aligner_lib.tutorial.execution.peak_memory import PeakMemory
from aligner_lib.tutorial.execution.progress_bars import Progress
from aligner_lib.tutorial.report.summary import PAGES
from aligner_lib.tutorial.workspace.results import merge, read_object, read_results
from cluster.record import write_json

LAST_OF_THE_WAY = "08"  # later notebooks are optional: they run only when `only` names them
# A kernel usually dies at its start because another process has taken one of its ports. No cell has run yet, so the notebook is
# started a second time. The message depends on when the kernel gave up.
DIED_AT_START = ("Kernel died before replying to kernel_info", "Kernel didn't respond in")
START_TIMEOUT = 120  # seconds until a kernel on a busy machine must answer
SAVE_SECONDS = 10.0  # papermill would write the whole notebook before and after each cell: 0.7 s for a notebook with pictures
KERNEL_ARGUMENTS = [
    "--IPKernelApp.log_level=CRITICAL",  # no warnings about local TCP and the kernel's shutdown
    # registered before all other exit functions, so it runs after them
    """--IPKernelApp.exec_lines=['__import__("atexit").register(__import__("aligner_lib.jobs.process_end").jobs.process_end.leave_memory)']""",
]


@dataclass(frozen=True)
class Notebook:
    """A numbered notebook, such as notebooks/03_sft.ipynb."""

    path: Path

    @property
    def number(self) -> str:
        """The part of the file name before the first underscore: two digits, sometimes followed by a letter."""
        return self.path.stem.partition("_")[0]

    @property
    def name(self) -> str:
        """The file name without the extension."""
        return self.path.stem


@dataclass(frozen=True)
class NotebookFailure:
    """The failed cell of a notebook, and the error."""

    notebook: str
    cell: str | None
    """The cell's number as in JupyterLab, and its first line; None for an error outside of the cells."""
    error: str

    def __str__(self) -> str:
        where = f"notebook {self.notebook}" + (f", cell {self.cell}" if self.cell is not None else "")
        return f"{where}: {self.error}"


def choose(folder: Path, only: str | None = None) -> list[Notebook]:
    """The notebooks to run, in order. only: numbers such as "03,09".

    Without `only`, the notebooks up to LAST_OF_THE_WAY. Raises UserError for an unknown number, without a number, and for a
    folder without notebooks.
    """
    notebooks = [Notebook(path) for path in sorted(Path(folder).glob("[0-9][0-9]*.ipynb"))]
    if not notebooks:
        raise UserError(f"there are no notebooks in {folder}; the tutorial runs in a clone of the project")
    if only is None:
        return [notebook for notebook in notebooks if notebook.number <= LAST_OF_THE_WAY]
    numbers = [_as_in_names(number) for number in map(str.strip, only.split(",")) if number]
    known = [notebook.number for notebook in notebooks]
    if not numbers:
        raise UserError(f"--only {only!r} names no notebook: choose from {', '.join(known)}")
    for number in numbers:
        if number not in known:
            raise UserError(f"--only {only}: there is no notebook {number}; there are {', '.join(known)}")
    return [notebook for notebook in notebooks if notebook.number in numbers]


def _as_in_names(number: str) -> str:
    """Pad the number of a notebook: 3 becomes 03, and 4b becomes 04b."""
    digits = number.rstrip(ascii_lowercase)
    return digits.zfill(2) + number.removeprefix(digits)


def default_output(root: Path, profile: str, partial: bool = False) -> Path:
    """The output folder: a new folder for the whole tutorial, the newest existing folder for a partial run.

    A partial run needs the results of the earlier notebooks.
    """
    earlier = sorted(Path(root).glob(f"tutorial-{profile}-*"))
    if partial and earlier:
        return earlier[-1]
    return Path(root) / f"tutorial-{profile}-{time.strftime('%Y%m%d-%H%M%S')}"


def parse_parameters(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as `name=value` into a dict. Raises UserError for any other text.

    Numbers, true, false, null and lists are parsed as JSON. Everything else stays text, and so does every secret (`judge_token`).
    """
    parameters = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"-p {pair}: write name=value")
        parameters[name] = text if _is_secret(name) else _value(text)
    return parameters


def run(
    notebooks: list[Notebook],
    profile: str,
    out: Path,
    parameters: dict[str, Any],
    write_page: Callable[[RunFolder, Path], object] | None = None,
) -> bool:
    """Run notebooks one after another. Returns True if all notebooks ran to the end.

    write_page: writes a run's page for the report. After a failing cell, no further notebook runs, but the report still
    contains the completed cells. Raises UserError for an unknown profile, for a parameter that no notebook has, and for a folder
    of another profile or seed.
    """
    if profile not in profiles():
        raise UserError(f"there is no profile {profile!r}; there are {', '.join(profiles())}")
    out = Path(out).resolve()
    defaults = {notebook.name: _default_parameters(notebook) for notebook in notebooks}
    _check_parameters(parameters, set().union(*defaults.values()))
    values = parameters | {"profile": profile, "out": str(out)}
    used = {
        name: {
            key: parameters.get(key, value)
            for key, value in own.items()
            if key not in ("profile", "out") and not _is_secret(key)
        }
        for name, own in defaults.items()
    }
    _check_folder(out, profile, used)
    with explain_read_only(lambda reason: f"{out} can't be written ({reason}): choose another: --out DIR"):
        (out / "notebooks").mkdir(parents=True, exist_ok=True)
        (out / "results").mkdir(exist_ok=True)
    completed, seconds, peak_gib, failure = {}, {}, {}, None
    with Progress(len(notebooks)) as progress, _sigterm_as_interrupt():
        for notebook in notebooks:
            start, name = time.monotonic(), notebook.name
            given = {key: value for key, value in values.items() if key in defaults[name]}
            with PeakMemory() as memory:
                failure = _run_one(notebook, out, given, progress)
            seconds[name], peak_gib[name] = round(time.monotonic() - start, 1), round(memory.gib, 2)
            progress.finish_notebook(name, seconds[name], failed=failure is not None)
            if failure:
                _stop_runs(out)
                break
            completed[name] = used[name]
    by_notebook = {"parameters": completed, "seconds": seconds, "memory_gib": peak_gib}
    summary = _write_summary(out, profile, by_notebook, failure, progress.echo)
    if write_page is not None:
        _write_pages(out, write_page, progress.echo)
    _tell(out, summary, failure, progress)
    return failure is None


def report(
    out: Path, write_page: Callable[[RunFolder, Path], object], echo: Callable[[str], None] = print
) -> Path:
    """Write the report and the pages of notebooks that ran elsewhere, for example in papermill. Returns the report's path.

    out: the notebooks' parameter `out`; the report contains the executed notebooks in OUT/notebooks. Raises UserError for a
    folder with neither results nor runs.
    """
    runs, figures, path = find_runs(out / "runs"), read_results(out, echo), out / "summary.json"
    if not runs and not figures:
        raise UserError(
            f"{out} has neither results/ nor runs/ of notebooks: give the folder in the notebooks' parameter `out`"
        )
    profile = next((known for run in runs if (known := run.info.get("profile"))), None)
    summary = {"profile": profile} if profile else {}
    merge(summary, read_object(path, echo) if path.exists() else {})
    merge(summary, figures)
    _write_pages(out, write_page, echo)
    return _write_report(out, summary)


def _run_one(
    notebook: Notebook, out: Path, parameters: dict[str, Any], progress: Progress
) -> NotebookFailure | None:
    """Run a notebook, whose new result replaces an earlier one. If the notebook fails, the earlier result stays."""
    result = out / "results" / f"{notebook.number}.json"
    earlier = result.with_suffix(".earlier")
    if result.exists():
        result.replace(earlier)
    secrets = {name: value for name, value in parameters.items() if _is_secret(name)}
    # papermill writes its parameters into the executed notebook, which others may read
    written = {name: value for name, value in parameters.items() if name not in secrets}
    with _in_environment(secrets):
        failure = _execute(notebook, out, written, progress)
    if failure is None:
        earlier.unlink(missing_ok=True)
    elif earlier.exists():
        earlier.replace(result)
    return failure


def _execute(
    notebook: Notebook, out: Path, parameters: dict[str, Any], progress: Progress
) -> NotebookFailure | None:
    import papermill

    engine = _engine(lambda done, cells: progress.advance(notebook.name, done, cells))
    execute = partial(
        papermill.execute_notebook,
        notebook.path,
        out / "notebooks" / notebook.path.name,
        parameters=parameters,
        engine_name=engine,
        cwd=notebook.path.parent,
        progress_bar=False,
        start_timeout=START_TIMEOUT,
        extra_arguments=KERNEL_ARGUMENTS,
    )
    try:
        try:
            execute()
        except RuntimeError as error:
            if not str(error).startswith(DIED_AT_START):
                raise
            execute()
    except papermill.PapermillExecutionError as error:
        cell = f"[{error.exec_count}] ({error.source.strip().splitlines()[0]})"
        return NotebookFailure(notebook.name, cell, f"{error.ename}: {_without_colours(error.evalue)}")
    except KeyboardInterrupt:
        # the interrupted cell's task would print a traceback of the dead kernel
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        return NotebookFailure(notebook.name, None, "interrupted")
    except Exception as error:  # the kernel died or did not start: report the error like a failing cell
        return NotebookFailure(notebook.name, None, f"{type(error).__name__}: {error}")
    return None


def _is_secret(parameter: str) -> bool:
    return parameter.endswith("_token")


@contextmanager
def _in_environment(secrets: dict[str, str]) -> Iterator[None]:
    """Give secrets to a notebook's kernel as environment variables, in which a notebook looks for an empty parameter: the
    parameter `judge_token` becomes the variable JUDGE_KEY."""
    given = {name.removesuffix("_token").upper() + "_KEY": value for name, value in secrets.items() if value}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _engine(on_cell: Callable[[int, int], None]) -> str:
    """Register a papermill engine that reports finished cells and seldom writes the notebook, and return the engine's name."""
    from papermill.engines import NBClientEngine, papermill_engines

    class CountingEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, **options):
            complete, cells, save = nb_man.cell_complete, len(nb_man.nb.cells), nb_man.save
            on_cell(0, cells)

            def save_seldom(**kwargs):
                if (nb_man.now() - nb_man.last_save_time).total_seconds() >= SAVE_SECONDS:
                    save(**kwargs)

            def cell_complete(cell, cell_index=None, **kwargs):
                complete(cell, cell_index=cell_index, **kwargs)
                on_cell((cell_index or 0) + 1, cells)

            nb_man.cell_complete, nb_man.save = cell_complete, save_seldom
            try:
                return super().execute_managed_notebook(nb_man, kernel_name, **options)
            finally:
                nb_man.save = save  # papermill's last write, also after a failed cell

    papermill_engines.register("aligner", CountingEngine)
    return "aligner"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat the first SIGTERM like Ctrl-C, and ignore the next ones. `timeout` sends two."""

    def interrupt(*_) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _default_parameters(notebook: Notebook) -> dict[str, Any]:
    """The values of a notebook's parameters, by name."""
    import papermill

    return {
        name: _value(parameter["default"])
        for name, parameter in papermill.inspect_notebook(notebook.path).items()
    }


def _check_parameters(parameters: dict[str, Any], known: set[str]) -> None:
    for name in parameters:
        if name in ("profile", "out"):
            raise UserError(f"-p {name}=…: the option --{name} sets the same value")
        if name not in known:
            near = nearest(name, known - {"profile", "out"})
            raise UserError(f"-p {name}: no notebook has the parameter; did you mean {' or '.join(near)}?")


def _check_folder(out: Path, profile: str, parameters: dict[str, dict]) -> None:
    """Raise UserError if the folder has results of another profile, or of other notebooks with another seed."""
    path = out / "summary.json"
    summary = read_object(path, lambda _: None) if path.exists() else {}
    known = {summary.get("profile"), *(run.info.get("profile") for run in find_runs(out / "runs"))}
    for earlier in known - {None, profile}:
        raise UserError(
            f"--profile {profile}: {out} has results with the profile {earlier}, and a report shows the results of a single "
            "profile: choose another folder with --out"
        )
    kept = {name: own for name, own in summary.get("parameters", {}).items() if name not in parameters}
    for name, other in product(parameters, kept):
        seed, earlier = parameters[name].get("seed"), kept[other].get("seed")
        if None not in (seed, earlier) and seed != earlier:
            raise UserError(
                f"{name} would run with seed={seed}, but {out} has results of {other} with seed={earlier}, and a report shows "
                f"the results of a single seed: give -p seed={earlier}, or choose another folder with --out"
            )


def _stop_runs(out: Path) -> None:
    """Ask the unfinished runs of a failed notebook to save a checkpoint and end, and cancel the jobs without a run yet."""
    from cluster import State

    for left in find_runs(out):
        if not left.is_over:
            left.request_stop()
    for submitted in (out / "runs").glob("**/job/job.json"):
        run = RunFolder(submitted.parent.parent)
        job = run.latest_job()
        if job and job.state in (State.PENDING, State.RUNNING):
            if run.info:  # the next attempt of a run that is over stops at its start
                run.request_stop()
            else:
                job.cancel()


# ---- summary, pages and report --------------------------------------------------------------------------------------


def _write_summary(
    out: Path,
    profile: str,
    by_notebook: dict[str, dict],
    failure: NotebookFailure | None,
    echo: Callable[[str], None],
) -> dict:
    """Merge the notebooks' results into summary.json.

    by_notebook: the parameters of each completed notebook, and the seconds and the peak memory of the largest process (GiB)
    during each notebook's latest execution.
    """
    path = out / "summary.json"
    earlier = read_object(path, echo) if path.exists() else {}
    summary = {"profile": profile}
    for name, latest in by_notebook.items():
        summary[name] = dict(sorted((earlier.get(name, {}) | latest).items()))
    summary["peak_memory_gib"] = max(summary["memory_gib"].values(), default=0.0)
    merge(summary, read_results(out, echo))
    if failure:
        summary["failed"] = str(failure)
    write_json(path, summary)
    return summary


def _write_pages(
    out: Path, write_page: Callable[[RunFolder, Path], object], echo: Callable[[str], None]
) -> None:
    """Write a page for each run with metrics. An OSError, such as a full disk, skips the page but does not stop the report."""
    for folder in find_runs(out / "runs"):
        name = "-".join(folder.path.relative_to(out / "runs").parts)
        if folder.metrics():
            try:
                write_page(folder, out / PAGES / f"{name}.html")
            except OSError as error:
                echo(f"the page of {name} could not be written: {error}")


def _write_report(out: Path, summary: dict) -> Path:
    from aligner_lib.tutorial.report.html_report import write_report

    path, executed = out / "report.html", sorted((out / "notebooks").glob("*.ipynb"))
    write_report(path, executed, summary, out / "runs")
    return path


def _tell(out: Path, summary: dict, failure: NotebookFailure | None, progress: Progress) -> None:
    path = _write_report(out, summary)
    if failure:
        progress.echo(f"stopped in {failure}")
    progress.echo(f"report    {path}")
    progress.echo(f"summary   {out / 'summary.json'}")
    progress.echo(f"notebooks {out / 'notebooks'}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)  # numbers, true, false, null, and lists
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
