"""Turns of a conversation in other projects' formats: `role` and `content`, or `from` and `value`."""

from __future__ import annotations

import re
from typing import Any

from data.fields import ignored_keys, require_unicode
from data.report import Reason, Unusable

Message = dict[str, Any]  # role, content; `weight` 0 for an answer without a loss

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
HH_TURN = re.compile(r"\n\n(Human|Assistant):")
TURN_KEYS = frozenset({"role", "content", "from", "value", "weight"})


def messages_of(value: Any, key: str) -> list[Message]:
    """The turns under a column `key`; a text is a user's turn. Raises Unusable for a value that cannot be read as turns."""
    if isinstance(value, str):
        return [{"role": "user", "content": _text(value, repr(key))}]
    if not isinstance(value, list) or not value:
        raise Unusable(Reason.WRONG_TYPE, f"{key!r} is neither a text nor a list of turns")
    return [_message(turn, f"turn {number} of {key!r}") for number, turn in enumerate(value, start=1)]


def answer_of(value: Any, key: str) -> str:
    """The text of a response, from a text or from a single assistant turn."""
    if isinstance(value, str):
        return _text(value, repr(key))
    messages = messages_of(value, key)
    if [message["role"] for message in messages] != ["assistant"]:
        raise Unusable(Reason.BAD_TURN, f"{key!r} is not a single turn of the assistant's")
    return messages[0]["content"]


def hh_messages(text: str, key: str) -> list[Message] | None:
    """The turns of a text in HH's format, `Human:` and `Assistant:` paragraphs after an empty line; None for other texts."""
    before, *pieces = HH_TURN.split(text)
    if before or not pieces:
        return None
    roles = ["user" if name == "Human" else "assistant" for name in pieces[::2]]
    return [
        {"role": role, "content": _text(content.strip(), repr(key))}
        for role, content in zip(roles, pieces[1::2])
    ]


def _message(turn: Any, place: str) -> Message:
    if not isinstance(turn, dict):
        raise Unusable(Reason.WRONG_TYPE, f"{place} is not an object")
    ignored_keys(turn, TURN_KEYS)
    role = turn.get("role", turn.get("from"))
    if role not in ROLES:
        raise Unusable(Reason.UNKNOWN_ROLE, f"{place}: {role!r}; the roles are {', '.join(ROLES)}")
    message = {"role": ROLES[role], "content": _text(_joined(turn.get("content", turn.get("value"))), place)}
    weight = turn.get("weight", 1)
    if weight not in (None, 0, 1):
        raise Unusable(Reason.WRONG_TYPE, f"{place} has the weight {weight!r}, but must be 0 or 1")
    return message | {"weight": 0} if weight == 0 and message["role"] == "assistant" else message


def _joined(content: Any) -> Any:
    """Content in several text parts, joined to one text; other content unchanged."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise Unusable(Reason.WRONG_TYPE, f"{place} is {type(value).__name__}, not text")
    if not value.strip():
        raise Unusable(Reason.EMPTY_TEXT, f"{place} is blank")
    require_unicode(value, place)
    return value
