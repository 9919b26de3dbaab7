"""The critic's service: the main threads of all ranks execute one command after the other.

The first rank takes them from its request_queue. What goes wrong in an command, on whichever rank, reaches the actor as a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from aligner_lib.megatron import parallel
from aligner_lib.remote_critic.errors import NotReady, Refusal, in_a_sentence
from aligner_lib.remote_critic.request_queue import RequestQueue
from aligner_lib.remote_critic.session import Ended
from aligner_lib.remote_critic.worker import End, Wait, Worker
from cluster.record import read_json, write_json

NOTES = "failed_rank_*.json"  # in the run folder's job/: why another rank than the first has ended


def serve(
    worker: Worker, request_queue: RequestQueue | None, is_over: Callable[[], Ended | None] | None, job: Path
) -> Ended | None:
    """Execute commands until it is over. request_queue, is_over: on the first rank; the others get None back. job: for the ranks' notes.

    An exception in a command goes to the actor in a sentence, and ends the service: half a step may have been taken. Of
    another rank's exception the first one hears through its note; of its death by what they did together, which fails.
    """
    while True:
        command, request, ended = Wait(), None, None
        if request_queue is not None:
            ended = is_over()
            command, request = (End(), None) if ended else request_queue.next()
        started = time.perf_counter()
        try:
            command = parallel.from_first_rank(command)
            if isinstance(command, End):
                break
            result = command.execute(worker)
            if request is not None:
                request_queue.done(command, request, result, time.perf_counter() - started)
        except Exception as error:
            kind = request.kind if request else type(command).__name__.lower()
            if request_queue is None:
                _note_failure(job, kind, error)
                raise
            refusal = _failure(job, kind, error)
            if request is not None:
                request.answer.set_exception(refusal)
            request_queue.close(refusal)
            if parallel.is_of_a_lost_rank(error):
                raise refusal from error
            raise
    if request_queue is not None:
        request_queue.close(NotReady(f"it is over ({ended.status}): {ended.message}"))
    return ended


def clear_notes(job: Path) -> None:
    """Remove what ranks of an earlier start have noted."""
    for note in job.glob(NOTES):
        note.unlink()


def _note_failure(job: Path, kind: str, error: Exception) -> None:
    """Leave word for the first rank, which only sees that this one is gone."""
    if not parallel.is_of_a_lost_rank(error):
        job.mkdir(exist_ok=True)
        write_json(job / NOTES.replace("*", str(parallel.rank())), {"words": in_a_sentence(kind, error)})


def _failure(job: Path, kind: str, error: Exception) -> Refusal:
    """What the actor is told of it: to wait for another server where a rank has died, else the reason."""
    if notes := sorted(job.glob(NOTES)):
        return Refusal(f"on its rank {notes[0].stem.rpartition('_')[2]}: {read_json(notes[0])['words']}")
    if parallel.is_of_a_lost_rank(error):
        return NotReady(
            f"it has lost one of its ranks in {kind}: their logs in {job} say more; start the same command again"
        )
    return Refusal(in_a_sentence(kind, error))
