"""The keys that a data file's record may have: the keys read by its form, and metadata.

Any other key is an error, and the message names the key. Otherwise training would silently ignore a question, a mask or a tool.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from aligner_lib.errors import UserError
from data.fields import METADATA, is_empty
from data.raw_forms import recognise

# Values without an effect, which are allowed for keys that no form reads. None and empty values are allowed for all keys.
WITHOUT_EFFECT = {"mask": ("User",)}


class RecordForm(NamedTuple):
    """A form of a record, given by the keys to read."""

    keys: frozenset[str]
    turns: tuple[str, ...] = ()
    """The keys whose values may be lists of turns."""
    turn_keys: frozenset[str] = frozenset()
    """The keys that are read in each turn."""


TEXT = RecordForm(frozenset({"text"}))
INSTRUCTION = RecordForm(frozenset({"input", "output"}))
TURN = frozenset({"role", "content"})
MESSAGES = RecordForm(frozenset({"messages", "system"}), ("messages",), TURN | {"weight"})
CONVERSATIONS = RecordForm(
    frozenset({"conversations", "system"}), ("conversations",), frozenset({"from", "value", "weight"})
)
PROMPT = RecordForm(frozenset({"prompt"}), ("prompt",), TURN)
PAIR = RecordForm(frozenset({"prompt", "chosen", "rejected"}), ("prompt", "chosen", "rejected"), TURN)
LABELLED = RecordForm(frozenset({"prompt", "response", "label"}), ("prompt", "response"), TURN)

CURES = {
    "context": "join the context and the question into one text, and give that text as 'input'",
    "mask": "the loss covers exactly the assistant's turns: give a conversation for which that is right",
    "tools": "write the tools into the system turn, as the model should read them",
    "tool_calls": "write the call into the turn's text, as the model should write it",
    "function_call": "write the call into the turn's text, as the model should write it",
    "reasoning_content": "put the reasoning into the turn's text, in the tags of the model's template",
}
REMOVE = "remove the key if its content does not matter, else move the content into a key that is read"


class UnreadKey(UserError):
    """A record has a key that no trainer reads."""


def sft_form(record: dict) -> RecordForm:
    """The form of an SFT record."""
    if "messages" in record:
        return MESSAGES
    return CONVERSATIONS if "conversations" in record else INSTRUCTION


def prompt_form(record: dict) -> RecordForm:
    """The form of a prompt's record."""
    return PROMPT if "prompt" in record else TEXT


def check_keys(record: dict, form: RecordForm) -> Counter:
    """Counts the metadata keys of a record, which are ignored on purpose, each key once.

    Raises UnreadKey for a key outside the form, unless the key's value has no effect.
    """
    ignored = Counter(_unread(record, form.keys, ""))
    for key in form.turns:
        turns = record.get(key)
        for number, turn in enumerate(turns if isinstance(turns, list) else [], start=1):
            if isinstance(turn, dict):
                ignored |= Counter(_unread(turn, form.turn_keys, f" of turn {number} in {key!r}"))
    return ignored


def _unread(record: dict, keys: frozenset[str], place: str) -> list[str]:
    """The metadata keys, which are ignored on purpose. Raises UnreadKey for any other key outside the form."""
    for key, value in record.items():
        if key in keys or key in METADATA or is_empty(value) or value in WITHOUT_EFFECT.get(key, ()):
            continue
        raise UnreadKey(
            f"the key {key!r}{place} is not read (only {', '.join(sorted(keys))} {'is' if len(keys) == 1 else 'are'}), so "
            f"its content would be missing from training: {_cure(record, key, place)}"
        )
    return [key for key in record if key in METADATA and key not in keys]


def _cure(record: dict, key: str, place: str) -> str:
    """Advice for an unread key: convert the file if its record has a known raw form, otherwise advice for the key itself."""
    form = None if place else recognise(name for name, value in record.items() if not is_empty(value))
    if form is None or key not in {*form.columns, *form.optional}:
        return CURES.get(key, REMOVE)
    return f"convert the file with `aligner data`, which reads {form.name}"
