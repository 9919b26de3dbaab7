"""Which keys a data file's record may have: those that its form reads, and metadata. Any other key is refused by name.

A key that is neither is a question, a mask or a tool that training would go on without.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from aligner_lib.errors import UserError
from data.fields import METADATA, is_empty

# Values of other keys that change nothing: with them a key may be there. None and empty values never change anything.
WITHOUT_EFFECT = {"weight": (1,), "mask": ("User",)}


class Form(NamedTuple):
    """One of the forms of a record."""

    keys: frozenset[str]  # that are read
    turns: str = ""  # the key of a conversation's list of turns; empty: the record is no conversation
    turn_keys: frozenset[str] = frozenset()  # that are read of each turn


TEXT = Form(frozenset({"text"}))
INSTRUCTION = Form(frozenset({"input", "output"}))
MESSAGES = Form(frozenset({"messages", "system"}), "messages", frozenset({"role", "content"}))
CONVERSATIONS = Form(frozenset({"conversations", "system"}), "conversations", frozenset({"from", "value"}))
LABELLED = Form(frozenset({"prompt", "response", "label"}))

CURES = {
    "instruction": "join the instruction and its input into one text, and give that as 'input'",
    "context": "join the context and the question into one text, and give that as 'input'",
    "weight": "take turns that shall not be learnt from to another file, or split the conversation before them",
    "mask": "the assistant's turns are learnt, and no others: give the conversation in which that is right",
    "tools": "write the tools into the system turn as the model is to read them",
    "tool_calls": "write the call into the turn's text as the model is to write it",
    "function_call": "write the call into the turn's text as the model is to write it",
    "reasoning_content": "put the reasoning into the turn's text, in the tags that the model's template has for it",
}
REMOVE = "remove the key where it does not matter, else bring its content into a key that is read"


class UnreadKey(UserError):
    """A record has a key that no trainer reads."""


def sft_form(record: dict) -> Form:
    """The form of an SFT record."""
    if "messages" in record:
        return MESSAGES
    return CONVERSATIONS if "conversations" in record else INSTRUCTION


def check_keys(record: dict, form: Form) -> Counter:
    """The keys of a record that are ignored on purpose, each counted once.

    Raises UnreadKey for a key that its form does not read, unless its value changes nothing.
    """
    ignored = Counter(_unread(record, form.keys, ""))
    turns = record.get(form.turns)
    for number, turn in enumerate(turns if isinstance(turns, list) else [], start=1):
        if isinstance(turn, dict):
            ignored |= Counter(_unread(turn, form.turn_keys, f" of turn {number} in {form.turns!r}"))
    return ignored


def _unread(record: dict, read: frozenset[str], place: str) -> list[str]:
    """The keys that are ignored on purpose. Raises UnreadKey for another that is not read."""
    for key, value in record.items():
        if key in read or key in METADATA or is_empty(value) or value in WITHOUT_EFFECT.get(key, ()):
            continue
        raise UnreadKey(
            f"the key {key!r}{place} is not read ({', '.join(sorted(read))} {'is' if len(read) == 1 else 'are'}), and its "
            f"content would be missing from training: {CURES.get(key, REMOVE)}"
        )
    return [key for key in record if key in METADATA and key not in read]
