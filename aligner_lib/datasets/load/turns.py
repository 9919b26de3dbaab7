"""The turns and texts of a record."""

from __future__ import annotations

from typing import NamedTuple

from aligner_lib.datasets.chat_template import ROLES, Conversation, Message
from aligner_lib.datasets.json_lines import text_of
from aligner_lib.datasets.tool_calls import ToolCall, calling_message
from data.conversations import is_templated
from data.tools import check_results, checked_calls


class Turn(NamedTuple):
    """A turn of a conversation; role: one of ROLES' values, or Tool."""

    role: str
    text: str
    learnt: bool
    """Whether the loss covers the turn: True for an answer, unless its weight is 0."""
    calls: tuple[ToolCall, ...] = ()

    def message(self) -> Message:
        content = self.text.strip()
        return calling_message(self.calls, content) if self.calls else as_message(self.role, content)


def turns_in_record(record: dict) -> list[Turn]:
    key, role, text = (
        ("messages", "role", "content") if "messages" in record else ("conversations", "from", "value")
    )
    turns = record[key]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError(f"{key!r} is not a list of turns")
    opening = [Turn("System", text_of(record, "system"), False)] if record.get("system") else []
    read = [_turn(turn, text_of(turn, role), text) for turn in turns]
    if opening and read and read[0].role == "System":
        if opening[0] != read[0]:
            raise ValueError(
                "'system' and the first turn differ, and only one can be the system turn: remove one of them"
            )
        opening = []
    check_results(turns, [turn.role.lower() for turn in read])
    return opening + read


def _turn(turn: dict, name: str, text_key: str) -> Turn:
    roles = ROLES if text_key == "value" else ROLES | {"tool": "Tool"}
    if name.lower() not in roles:
        raise ValueError(f"a turn has the role {name!r}; the roles are {', '.join(roles)}")
    if turn.get("weight") not in (None, 0, 1):
        raise ValueError(f"a turn has the weight {turn['weight']!r}, but must be 0 or 1")
    role = roles[name.lower()]
    calls = checked_calls(turn["tool_calls"]) if turn.get("tool_calls") else []
    if calls and role != "Assistant":
        raise ValueError(
            f"a turn with the role {name!r} has 'tool_calls', which only an assistant's turn may have"
        )
    text = "" if calls and turn.get(text_key) is None else text_of(turn, text_key)
    return Turn(role, text, role == "Assistant" and turn.get("weight") != 0, tuple(calls))


def as_message(role: str, text: str) -> Message:
    return {"role": role.lower(), "content": text}


def text_or_turns(record: dict, key: str, as_turns: bool = False) -> Conversation:
    """A prompt as a text or as turns. as_turns: a text becomes a user's turn, unless a chat template has written it. Raises
    ValueError for a blank text or user's turn at the end."""
    if not isinstance(record.get(key), list):
        text = text_of(record, key)
        if not text.strip():
            raise ValueError(f"{key!r} is empty")
        return [as_message("User", text)] if as_turns and not is_templated(text) else text
    turns = [as_message(turn.role, turn.text.strip()) for turn in turns_in_record({"messages": record[key]})]
    if not turns or turns[-1]["role"] == "assistant":
        raise ValueError(f"the last turn of {key!r} is not the user's")
    if turns[-1] == as_message("User", ""):
        raise ValueError(f"the last turn of {key!r} is empty")
    return turns


def after_prompt(prompt: Conversation, response: str) -> str:
    """A response as it follows a prompt: after a space, unless a chat template has written the prompt."""
    return response if is_templated(prompt) else f" {response}"


def response_text(record: dict, key: str) -> str:
    """The text of a response, which is stored as a text or as a single turn of the assistant's."""
    if not isinstance(record.get(key), list):
        text = text_of(record, key)
    else:
        turns = turns_in_record({"messages": record[key]})
        if [turn.role for turn in turns] != ["Assistant"]:
            raise ValueError(
                f"{key!r} is not a single turn of the assistant: convert conversations that include the prompt with "
                "`aligner data`"
            )
        text = turns[0].text
    if not text.strip():
        raise ValueError(f"{key!r} is empty")
    return text
