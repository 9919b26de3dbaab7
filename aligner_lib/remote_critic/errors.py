"""Why a request was not met, and how that crosses between the jobs."""

from __future__ import annotations

import traceback

from aligner_lib.errors import UserError


class Refusal(UserError):
    """A request that can't be met; its text goes to the actor, and ends its run."""


class NotReady(Refusal):
    """The server is not where the actor counts on it to be: it was started anew and lacks train steps, or it is ending.

    The actor waits for one that goes back to their newest common checkpoint.
    """


class NoCheckpoint(Refusal):
    """The server does not have the checkpoint that it is to go back to."""


KINDS = {"not ready": NotReady, "no checkpoint": NoCheckpoint, "refused": Refusal}


def in_words(error: UserError) -> str:
    """The kind of refusal, then its words."""
    kind = next((kind for kind, refusal in KINDS.items() if isinstance(error, refusal)), "refused")
    return f"{kind}: {error}"


def from_words(text: str) -> Refusal:
    kind, _, words = text.partition(": ")
    return KINDS[kind](words)


def in_a_sentence(work: str, error: Exception) -> str:
    """A fault, for the actor; the traceback stays here."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error).split()) or "no message"
    place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return f"it failed in {work} with {type(error).__name__}: {words} ({place}); its log has the traceback"
