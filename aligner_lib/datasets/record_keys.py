"""The keys that a data file's record may have: the keys read by its form, and metadata.

Any other key is an error, and the message names the key. Otherwise training would silently ignore a question, a mask or a tool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from aligner_lib.datasets.chat_template import ROLES
from aligner_lib.errors import UserError
from data.conversations import (
    TOOL_KEYS,
    TOOL_ROLES,
    TURN_KEYS,
    TURNS,
    hh_messages,
    hh_prompt,
    is_plain_prompt,
)
from data.fields import METADATA, TURN_METADATA, is_empty
from data.raw_forms import RawForm, recognise, unread_columns
from data.report import Unusable

# Values without an effect, which are allowed for keys that no form reads. None and empty values are allowed for all keys.
WITHOUT_EFFECT = {"mask": ("User",)}


class RecordForm(NamedTuple):
    """A form of a record, given by the keys to read."""

    keys: frozenset[str]
    turns: tuple[str, ...] = ()
    """The keys whose values may be lists of turns."""
    turn_keys: frozenset[str] = frozenset()
    """The keys that are read in each turn."""
    result_keys: frozenset[str] = frozenset()
    """The further keys that are read in a tool's result."""

    def keys_of(self, turn: dict) -> frozenset[str]:
        """The keys that are read in a turn."""
        is_result = TOOL_ROLES.get(str(turn.get("role")).lower()) == "tool"
        return self.turn_keys | self.result_keys if is_result else self.turn_keys


TEXT = RecordForm(frozenset({"text"}))
INSTRUCTION = RecordForm(frozenset({"input", "output"}))
TURN = frozenset({"role", "content"})
MESSAGES = RecordForm(
    frozenset({"messages", "system", "tools"}),
    ("messages",),
    TURN | {"weight", "tool_calls"},
    TOOL_KEYS["tool"],
)
CONVERSATIONS = RecordForm(
    frozenset({"conversations", "system"}), ("conversations",), frozenset({"from", "value", "weight"})
)
PROMPT = RecordForm(frozenset({"prompt"}), ("prompt",), TURN)
PAIR = RecordForm(frozenset({"prompt", "chosen", "rejected"}), ("prompt", "chosen", "rejected"), TURN)
LABELLED = RecordForm(frozenset({"prompt", "response", "label"}), ("prompt", "response"), TURN)

CURES = {
    "context": "join the context and the question into one text, and give that text as 'input'",
    "mask": "the loss covers exactly the assistant's turns: give a conversation for which that is right",
    "tools": "conversations with tools are for SFT, under 'messages'; elsewhere write the tools into the system turn",
    "tool_calls": "conversations with tools are for SFT, under 'messages'; elsewhere write the call into the turn's text",
    "function_call": "give the call as 'tool_calls', a list, in OpenAI's form",
    "reasoning_content": "put the reasoning into the turn's text, in the tags of the model's template",
}
REMOVE = "remove the key if its content does not matter, else move the content into a key that is read"


Samples = Literal["sft", "pairs", "labels", "prompts"]
"""The samples of a job; `labels` also allows pairs."""


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


def text_form(record: dict) -> RecordForm:
    """The form of a pair's text."""
    return TEXT


def pair_form(record: dict) -> RecordForm:
    """The form of a pair in a single record."""
    return PAIR


def labelled_form(record: dict) -> RecordForm:
    """The form of a labelled response's record."""
    return LABELLED


def need_conversion(records: Sequence[dict], samples: Samples) -> bool:
    """Whether the trainers cannot read a file with these first records as it stands, but `data.convert` may.

    One record that needs a conversion suffices, but faulty records decide only if most are faulty.
    """
    forms = raw_forms(records, samples)
    needing = [record for record in records if needs_conversion(record, samples)]
    faulty = [record for record in needing if is_faulty(record, samples, forms)]
    return len(faulty) < len(needing) or 2 * len(faulty) > len(records)


def raw_forms(records: Iterable[dict], samples: Samples) -> list[RawForm]:
    """The raw forms of the records that have all keys that the trainers require."""
    contents = [_content(record) for record in records]
    forms = [_raw_form(content) for content in contents if _has_required_keys(content, samples)]
    return [form for form in forms if form is not None]


def is_faulty(record: dict, samples: Samples, forms: Sequence[RawForm]) -> bool:
    """Whether a record that needs a conversion can't be converted: because the record lacks a required key and is in none of
    its file's raw forms (`raw_forms`), or because of a value."""
    content = _content(record)
    form = _raw_form(content)
    if form is None or not _has_required_keys(content, samples):
        return form not in forms
    try:
        form.read(content)
    except Unusable:
        return True
    return False


def _has_required_keys(content: dict, samples: Samples) -> bool:
    _, needed, _ = _trainers_form(content, samples)
    return needed <= content.keys()


def _raw_form(content: dict) -> RawForm | None:
    """The raw form that reads all keys of a record; None if there is none."""
    form = recognise(content)
    return None if form is None or unread_columns(form, content) else form


def needs_conversion(record: dict, samples: Samples) -> bool:
    """Whether the trainers cannot read a record as it stands, but `data.convert` may.

    True if the record lacks a required key, if a known raw form reads all keys that the trainers do not read, and if a text or
    the turns under a key are in another project's format.
    """
    content = _content(record)
    form, needed, text_keys = _trainers_form(content, samples)
    if not needed <= content.keys():
        return True
    unread = [key for key in content if key not in form.keys and key not in METADATA]
    unread = [key for key in unread if content[key] not in WITHOUT_EFFECT.get(key, ())]
    if unread:
        return _raw_form(content) is not None
    values = [(content[key], key) for key in text_keys if key in content]
    if any(_has_unread_key(value, form) for value, _ in values):
        return False  # no form reads the key: the job ends with the key's own cure
    if form is LABELLED and is_plain_prompt(content["prompt"]):
        values.remove((content["prompt"], "prompt"))  # KTO reads the text's paragraphs as turns
    return not all(_is_readable(value, key) for value, key in values)


def _content(record: dict) -> dict:
    return {key: value for key, value in record.items() if not is_empty(value)}


def _trainers_form(content: dict, samples: Samples) -> tuple[RecordForm, set[str], tuple[str, ...]]:
    """The trainers' form of a record, its required keys, and the keys whose values may be turns or texts."""
    if samples == "sft":
        form = sft_form(content)
        return form, {"input", "output"} if form is INSTRUCTION else {form.turns[0]}, form.turns
    if samples == "prompts":
        form = prompt_form(content)
        return form, {"text"} if form is TEXT else {"prompt"}, form.turns
    if samples == "labels" and "label" in content:
        return LABELLED, set(LABELLED.keys), ("prompt", "response", "label")
    return (TEXT, {"text"}, ()) if "text" in content else (PAIR, set(PAIR.keys), PAIR.turns)


def _has_unread_key(value: Any, form: RecordForm) -> bool:
    """Whether a turn of a list has a key with content, which neither the trainers nor `data.convert` read."""
    turns = [turn for turn in value if isinstance(turn, dict)] if isinstance(value, list) else []
    return any(
        key not in TURN_KEYS | TURN_METADATA | form.keys_of(turn) and not is_empty(content)
        for turn in turns
        for key, content in turn.items()
    )


def _is_readable(value: Any, key: str) -> bool:
    """Whether the trainers read a value: turns with texts and known roles, a text neither of turns nor in HH's format, a bool
    as label."""
    if key == "label":
        return isinstance(value, bool)
    if isinstance(value, str):
        return (
            key not in ("messages", "conversations")
            and not TURNS.match(value)
            and not _is_in_hh_s_format(value, key)
        )
    role, text = ("from", "value") if key == "conversations" else ("role", "content")
    turns = value if isinstance(value, list) else []
    roles = {*ROLES, "tool"} if key == "messages" else ROLES
    readable = bool(turns) and all(
        isinstance(turn, dict)
        and (isinstance(turn.get(text), str) or (turn.get(text) is None and turn.get("tool_calls")))
        and str(turn.get(role)).lower() in roles
        for turn in turns
    )
    # a response of several turns also holds the prompt
    return readable and (key not in ("chosen", "rejected", "response") or len(turns) == 1)


def _is_in_hh_s_format(text: str, key: str) -> bool:
    try:
        return (hh_prompt(text, key) if key == "prompt" else hh_messages(text, key)) is not None
    except Unusable:  # a blank turn, which the conversion reports
        return True


def check_keys(record: dict, form: RecordForm) -> Counter:
    """Counts the metadata keys of a record, which are ignored on purpose, each key once.

    Raises UnreadKey for a key outside the form, unless the key's value has no effect.
    """
    ignored = Counter(_unread(record, form.keys, ""))
    for key in form.turns:
        turns = record.get(key)
        for number, turn in enumerate(turns if isinstance(turns, list) else [], start=1):
            if isinstance(turn, dict):
                ignored |= Counter(_unread(turn, form.keys_of(turn), f" of turn {number} in {key!r}"))
    return ignored


def _unread(record: dict, keys: frozenset[str], place: str) -> list[str]:
    """The metadata keys, which are ignored on purpose. Raises UnreadKey for any other key outside the form."""
    metadata = TURN_METADATA if place else METADATA
    for key, value in record.items():
        if key in keys or key in metadata or is_empty(value) or value in WITHOUT_EFFECT.get(key, ()):
            continue
        raise UnreadKey(
            f"the key {key!r}{place} is not read (only {', '.join(sorted(keys))} {'is' if len(keys) == 1 else 'are'}), so "
            f"its content would be missing from training: {_cure(record, key, place)}"
        )
    return [key for key in record if key in metadata and key not in keys]


def _cure(record: dict, key: str, place: str) -> str:
    """Advice for an unread key: convert the file if its record has a known raw form, otherwise advice for the key itself."""
    form = None if place else recognise(name for name, value in record.items() if not is_empty(value))
    if form is None or key not in {*form.columns, *form.optional}:
        return CURES.get(key, REMOVE)
    return f"convert the file with `aligner data`, which reads {form.name}"
