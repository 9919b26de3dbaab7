"""Why a request was not met, and how that crosses between the jobs."""

from __future__ import annotations

from aligner_lib.errors import UserError


class Refusal(UserError):
    """A request that can't be met; its text goes to the actor, and ends its run."""


class NotReady(Refusal):
    """The server is not the one that the actor counts on: it was started anew and lacks train steps, or it is ending.

    The actor waits for one that it can tell what is missing, and goes on.
    """


def in_words(error: UserError) -> str:
    """The kind of refusal, then its words."""
    return f"{'not ready' if isinstance(error, NotReady) else 'refused'}: {error}"


def from_words(text: str) -> Refusal:
    kind, _, words = text.partition(": ")
    return {"not ready": NotReady, "refused": Refusal}[kind](words)
