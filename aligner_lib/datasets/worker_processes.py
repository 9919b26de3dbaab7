"""Runs a task on the chunks of a file in worker processes. The results keep the order of the chunks."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import current_process, get_context, parent_process
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
CHUNK_CHARACTERS = 1 << 18
"""A chunk's texts have about this many characters at most, so a chunk's samples take about 3 MB as lists of token ids."""

_task: Callable | None = None
"""In a worker: the task."""


def check_main_is_guarded() -> None:
    """Raises RuntimeError in a worker that is still importing a script without `if __name__ == "__main__":`.

    Such a worker runs the script once more, and would wait for a lock that the worker's caller holds.
    """
    if getattr(current_process(), "_inheriting", False):  # as multiprocessing itself finds out
        raise RuntimeError(
            'a worker process runs the script that started the process: put the script\'s calls under `if __name__ == "__main__":`'
        )


def in_chunks(
    items: Iterable[Item], count: int, characters_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """The items in chunks of at most `count` items. A chunk ends earlier when its texts have CHUNK_CHARACTERS."""
    chunk, characters = [], 0
    for item in items:
        chunk.append(item)
        characters += characters_of(item)
        if len(chunk) == count or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def results(
    task: Callable[[list[Item]], Result], chunks: Iterable[list[Item]], workers: int
) -> Iterator[Result]:
    """`task(chunk)` of each chunk, in the order of the chunks. At most 2 · workers + 1 chunks are in progress at a time.

    workers: the number of processes; with 1, the caller's process does the work. task: is pickled once for each worker.
    Raises the error of the first chunk whose task fails, BrokenProcessPool when a worker is killed.
    """
    if workers == 1:
        yield from map(task, chunks)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (task,))
    under_way = deque()
    try:
        for chunk in chunks:
            under_way.append(pool.submit(_run, chunk))
            if len(under_way) > 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(task: Callable) -> None:
    global _task
    _task = task
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers already use all cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller, which ends the workers
    Thread(target=_end_with_caller, daemon=True).start()


def _end_with_caller() -> None:
    """A killed caller closes no pool, and its workers would wait for chunks for ever."""
    parent_process().join()
    os._exit(1)


def _run(chunk: list) -> object:
    return _task(chunk)
