"""The reasons for refusing a request, and their encoding between the jobs."""

from __future__ import annotations

import traceback

from aligner_lib.errors import UserError


class Refusal(UserError):
    """A request that can't be fulfilled. The message goes to the actor and ends the actor's run."""


class NotReady(Refusal):
    """The server is not in the state that the actor expects: the server was restarted and lacks train steps, or is ending.

    The actor then waits for a server that goes back to the newest common checkpoint.
    """


class NoCheckpoint(Refusal):
    """The server lacks the checkpoint for which the actor asks."""


KINDS = {"not ready": NotReady, "no checkpoint": NoCheckpoint, "refused": Refusal}


def in_words(error: UserError) -> str:
    """The kind of refusal, followed by its message."""
    kind = next((kind for kind, refusal in KINDS.items() if isinstance(error, refusal)), "refused")
    return f"{kind}: {error}"


def from_words(text: str) -> Refusal:
    kind, _, message = text.partition(": ")
    return KINDS[kind](message)


def in_a_sentence(work: str, error: Exception) -> str:
    """A sentence about an exception, for the actor. The traceback stays in the log of the server's job."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split()) or "no message"
    place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return f"it failed in {work} with {type(error).__name__}: {message} ({place}); its log has the traceback"
