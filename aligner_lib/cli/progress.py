"""A learner's progress on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aligner_lib.errors import UserError
from aligner_lib.tutorial.report.progress_table import COLUMNS, ProgressTable
from aligner_lib.tutorial.workspace.learning_progress import FILE, find_workspaces

BAR = 12  # characters


def find_workspace(folder: Path | None, root: Path) -> Path:
    """Return the given workspace, or the workspace below `root` with the newest progress.

    Raises UserError if there is no workspace, and for a folder of workspaces.
    """
    if folder is not None:
        if not folder.is_dir():
            raise UserError(
                f"{folder} is not a folder; a notebook's workspace is the folder in its parameter `out`"
            )
        if not (folder / FILE).exists() and (inside := next(find_workspaces(folder), None)):
            raise UserError(f"{folder} is a folder of workspaces: name one of them, such as {inside}")
        return folder
    if (newest := next(find_workspaces(root), None)) is None:
        raise UserError(
            f"no workspace in {root}/ has a {FILE}: the first exercise, quiz or run of a notebook writes the file"
        )
    return newest


def show_progress(folder: Path) -> None:
    """Print a row for each notebook, with a mark at the current notebook, and the source of the numbers."""
    progress, console = ProgressTable(folder), Console()
    table = Table(box=None, header_style="bold", pad_edge=False, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in ("exercises", "quiz", "runs") else "left")
    for row in progress.rows:
        here = row is progress.here
        filled = round(BAR * row.all.done / row.all.of)
        bar = f"[cyan]{'█' * filled}[/][dim]{'░' * (BAR - filled)}[/]" + (" ← you are here" if here else "")
        cells = (escape(row.name), str(row.exercises), str(row.quiz), str(row.runs), bar)
        table.add_row(*cells, style="bold" if here else None)
    console.print(f"[bold]{escape(str(folder))}[/bold]")
    console.print(table)
    console.print(progress.caption, highlight=False)
