"""Why a request was not met, and how that crosses between the jobs."""

from __future__ import annotations

from aligner_lib.errors import UserError


class Refusal(UserError):
    """A request that can't be met; its text goes to the actor, and ends its run."""


class Behind(Refusal):
    """The critic has not taken the steps that the actor counts on: it was started anew. Told what is missing, it can go on."""


def in_words(error: UserError) -> str:
    """The kind of refusal, then its words."""
    return f"{'behind' if isinstance(error, Behind) else 'refused'}: {error}"


def from_words(text: str) -> Refusal:
    kind, _, words = text.partition(": ")
    return {"behind": Behind, "refused": Refusal}[kind](words)
