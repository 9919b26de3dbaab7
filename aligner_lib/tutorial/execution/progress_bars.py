"""Progress of the tutorial: two bars on a terminal, lines of text otherwise."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """A bar for all notebooks, and a second bar for the cells of the current notebook."""

    def __init__(self, notebooks: int, console: Console | None = None):
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._notebooks, self._finished, self._current = notebooks, 0, ""
        self._bars = Bars(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._all = self._bars.add_task("tutorial", total=notebooks)
        self._cells = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        self._bars.stop()

    def advance(self, notebook: str, done: int, cells: int) -> None:
        """Show that `done` of the notebook's `cells` have run."""
        if notebook != self._current:
            self._current = notebook
            self._cells = self._bars.add_task(notebook, total=cells)
            if not self.console.is_terminal:
                self.echo(f"[{self._finished + 1}/{self._notebooks}] {notebook} …")
        self._bars.update(self._cells, completed=done, total=cells)

    def finish_notebook(self, notebook: str, seconds: float, failed: bool) -> None:
        """Print a line for an ended notebook: its seconds, and whether the notebook failed."""
        self._finished += 1
        if self._cells is not None:
            self._bars.remove_task(self._cells)
            self._cells, self._current = None, ""
        self._bars.update(self._all, completed=self._finished)
        self.echo(f"{'failed' if failed else 'done':<7} {notebook:<20} {seconds:7.1f} s")

    def echo(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(escape(text))
