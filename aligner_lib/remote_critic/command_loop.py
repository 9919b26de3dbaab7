"""The critic's service: the main threads of all ranks execute the actor's commands in order.

The first rank takes the commands from its request queue. When a command fails on any rank, the actor gets a sentence with the
reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from aligner_lib.megatron import parallel
from aligner_lib.remote_critic.errors import NotReady, Refusal, in_a_sentence
from aligner_lib.remote_critic.request_queue import RequestQueue
from aligner_lib.remote_critic.session import ServiceEnd
from aligner_lib.remote_critic.worker import End, Wait, Worker
from cluster.record import read_json, write_json

TOLD_S = 10.0  # for the actor's next request for the status, which follows within about a second
NOTES = "failed_rank_*.json"  # in the run folder's job/: the failures of ranks other than the first


def serve(
    worker: Worker,
    request_queue: RequestQueue | None,
    is_over: Callable[[], ServiceEnd | None] | None,
    job: Path,
) -> ServiceEnd | None:
    """Execute commands until the service ends. request_queue, is_over: on the first rank; None on the other ranks, for which
    the function returns None. job: the folder for the ranks' notes.

    An exception in a command is sent to the actor as a sentence and ends the service, because a train step may be incomplete.
    The first rank learns of another rank's exception through the rank's note, and of another rank's death through a failing
    collective operation.
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
            request_queue.wait_until_told(TOLD_S)
            if parallel.is_of_a_lost_rank(error):
                raise refusal from error
            raise
    if request_queue is not None:
        request_queue.close(NotReady(f"it is over ({ended.status}): {ended.message}"))
    return ended


def clear_notes(job: Path) -> None:
    """Remove the notes that ranks wrote in an earlier start."""
    for note in job.glob(NOTES):
        note.unlink()


def _note_failure(job: Path, kind: str, error: Exception) -> None:
    """Write a note for the first rank, which otherwise only notices that the rank is lost."""
    if not parallel.is_of_a_lost_rank(error):
        job.mkdir(exist_ok=True)
        write_json(job / NOTES.replace("*", str(parallel.rank())), {"words": in_a_sentence(kind, error)})


def _failure(job: Path, kind: str, error: Exception) -> Refusal:
    """The error for the actor: NotReady when a rank has died, so that the actor waits for another server; else the reason."""
    if notes := sorted(job.glob(NOTES)):
        return Refusal(f"on its rank {notes[0].stem.rpartition('_')[2]}: {read_json(notes[0])['words']}")
    if parallel.is_of_a_lost_rank(error):
        return NotReady(
            f"it has lost one of its ranks in {kind}: their logs in {job} say more; start the same command again"
        )
    return Refusal(in_a_sentence(kind, error))
