"""The critic's service: the main threads of all ranks obey one order after the other.

The first rank takes them from its desk. What goes wrong in an order, on whichever rank, reaches the actor as a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from aligner_lib.megatron import parallel
from aligner_lib.remote_critic.errors import NotReady, Refusal, in_a_sentence
from aligner_lib.remote_critic.request_queue import Desk
from aligner_lib.remote_critic.session import Ended
from aligner_lib.remote_critic.worker import End, Wait, Worker
from cluster.record import read_json, write_json

NOTES = "failed_rank_*.json"  # in the run folder's job/: why another rank than the first has ended


def serve(
    worker: Worker, desk: Desk | None, is_over: Callable[[], Ended | None] | None, job: Path
) -> Ended | None:
    """Obey orders until it is over. desk, is_over: on the first rank; the others get None back. job: for the ranks' notes.

    An exception in an order goes to the actor in a sentence, and ends the service: half a step may have been taken. Of
    another rank's exception the first one hears through its note; of its death by what they did together, which fails.
    """
    while True:
        order, asked, ended = Wait(), None, None
        if desk is not None:
            ended = is_over()
            order, asked = desk.farewell(ended) if ended else desk.next()
        started = time.perf_counter()
        try:
            order = parallel.from_first_rank(order)
            if isinstance(order, End):
                break
            result = order.obey(worker)
            if asked is not None:
                desk.done(order, asked, result, time.perf_counter() - started)
        except Exception as error:
            kind = asked.kind if asked else type(order).__name__.lower()
            if desk is None:
                _note_failure(job, kind, error)
                raise
            refusal = _failure(job, kind, error)
            if asked is not None:
                asked.answer.set_exception(refusal)
            desk.close(refusal)
            if parallel.is_of_a_lost_rank(error):
                raise refusal from error
            raise
    if desk is not None:
        desk.close(NotReady(f"it is over ({ended.status}): {ended.message}"))
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
