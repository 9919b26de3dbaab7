"""Progress bars for operations that take more than a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1


def echo_to(progress: bool) -> Callable[[str], None]:
    """A function that prints a line, or does nothing without progress."""
    return (lambda line: print(line, flush=True)) if progress else (lambda line: None)


@contextmanager
def show_steps(label: str, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar for work in steps. Yields a function to call with (done, total), or None."""
    if not shown:
        yield None
        return
    from rich.progress import Progress

    with Progress() as bars:
        task = bars.add_task(label)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def show_bytes(label: str, folder: Path, total: int, shown: bool) -> Iterator[None]:
    """A progress bar for another program's download into a folder of about `total` bytes."""
    if not shown:
        yield
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    over = threading.Event()
    with Progress(*columns) as bars:
        task = bars.add_task(label, total=total)

        def follow() -> None:
            while not over.wait(POLL_SECONDS):
                bars.update(task, completed=min(_bytes_in(folder), total))

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
            bars.update(task, completed=total)
        finally:
            over.set()
            follower.join()


def _bytes_in(folder: Path) -> int:
    """The bytes of all files below a folder while another program writes them. Hard links count once."""
    sizes = {}
    for path in folder.rglob("*"):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue
        sizes[stat.st_ino] = stat.st_size if path.is_file() else 0
    return sum(sizes.values())
