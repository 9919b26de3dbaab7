"""The reasons for refusing a request, and how they are sent between the jobs."""

from __future__ import annotations

import traceback

from aligner_lib.errors import UserError


class Refusal(UserError):
    """A request that can't be met; its message goes to the actor and ends the actor's run."""


class NotReady(Refusal):
    """The server is not in the state that the actor expects: it was started again and lacks train steps, or it is ending.

    The actor waits for a server that goes back to their newest common checkpoint.
    """


class NoCheckpoint(Refusal):
    """The server lacks the checkpoint that it should go back to."""


KINDS = {"not ready": NotReady, "no checkpoint": NoCheckpoint, "refused": Refusal}


def in_words(error: UserError) -> str:
    """The kind of refusal, followed by its message."""
    kind = next((kind for kind, refusal in KINDS.items() if isinstance(error, refusal)), "refused")
    return f"{kind}: {error}"


def from_words(text: str) -> Refusal:
    kind, _, message = text.partition(": ")
    return KINDS[kind](message)


def in_a_sentence(work: str, error: Exception) -> str:
    """A sentence about an exception, for the actor; the traceback stays in this job's log."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split()) or "no message"
    place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return f"it failed in {work} with {type(error).__name__}: {message} ({place}); its log has the traceback"
