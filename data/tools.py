"""Tools and tool calls in conversations, in OpenAI's form, checked.

An assistant's message may have `tool_calls`, and the result of a call is a message of the role `tool`. Source: OpenAI's API
reference, /v1/chat/completions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

Tool = dict[str, Any]
"""`{"type": "function", "function": {"name", "description", "parameters": a JSON schema}}`."""


class ToolCall(NamedTuple):
    """A call of a function."""

    name: str
    arguments: dict[str, Any]


def checked_tools(value: Any) -> list[Tool]:
    """The tools of a record or a request: a list, or the JSON text of a list. A bare function is put into its envelope.

    Raises ValueError for any other value.
    """
    try:
        tools = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'tools' is a text, but not JSON ({error})") from None
    if not isinstance(tools, list):
        raise ValueError(f"'tools' is {type(tools).__name__}, but must be a list of functions")
    functions = [tool.get("function", tool) if isinstance(tool, dict) else None for tool in tools]
    for tool, function in zip(tools, functions):
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or tool.get("type", "function") not in ("function", "object")
        ):
            raise ValueError(
                f'a tool is {_short(tool)}, but must have the form {{"type": "function", "function": {{"name": …}}}}'
            )
    return [{"type": "function", "function": function} for function in functions]


def checked_calls(value: Any) -> list[ToolCall]:
    """The calls under `tool_calls` of a message in OpenAI's form. `arguments` is an object or its JSON text.

    Raises ValueError for any other value.
    """
    if not isinstance(value, list):
        raise ValueError(f"'tool_calls' is {type(value).__name__}, but must be a list of calls")
    calls = []
    for call in value:
        function = call.get("function", call) if isinstance(call, dict) else None
        arguments = function.get("arguments", {}) if isinstance(function, dict) else None
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(arguments, dict) or not isinstance(function.get("name"), str):
            raise ValueError(
                f'a call is {_short(call)}, but must have the form {{"type": "function", "function": {{"name": …, "arguments": …}}}}'
            )
        calls.append(ToolCall(function["name"], arguments))
    return calls


def check_results(turns: Sequence[dict[str, Any]], roles: Sequence[str]) -> None:
    """Raises ValueError for a result that does not belong to the next open call of the turns, by `tool_call_id` or `name`, for a
    result without a call, and for a call without a result beside other results. roles: `user`, `assistant`, `tool`, …

    Templates write the results without ids, so the order alone says which result belongs to which call.
    """
    calls: list[dict[str, Any]] | None = []  # None: an answer may have calls in its text
    previous = None
    for number, (turn, role) in enumerate(zip(turns, roles), start=1):
        if role == "tool":
            _take_result(calls, turn, number)
        elif previous == "tool" and calls:
            raise ValueError(_missing_result(calls, f"turn {number} follows a result"))
        elif role == "assistant":
            # parallel calls may stand in several turns
            own = [
                {"tool_call_id": call.get("id"), "name": call.get("function", call).get("name")}
                for call in turn.get("tool_calls") or []
            ]
            calls = [*(calls or []), *own] if own else None
        else:
            calls = calls or []
        previous = role
    if previous == "tool" and calls:
        raise ValueError(_missing_result(calls, f"turn {len(turns)} is the last result"))


def _take_result(calls: list[dict[str, Any]] | None, turn: dict[str, Any], number: int) -> None:
    """Remove a result's call from the open calls. Raises ValueError for a result of another call, or of no call."""
    if calls is None:
        return
    if not calls:
        raise ValueError(
            f"turn {number} is a result, but no call before it lacks a result: remove the turn, or add its call to the "
            "'tool_calls' of the assistant's turn"
        )
    for key, value in calls.pop(0).items():
        if value and turn.get(key) and turn[key] != value:
            raise ValueError(
                f"turn {number} has the {key} {turn[key]!r}, but the next call without a result has {value!r}: put "
                "results into the order of their calls"
            )


def _missing_result(calls: list[dict[str, Any]], place: str) -> str:
    return f"{place}, but the call of {calls[0]['name']!r} before has none: give a turn of the role 'tool' for each call"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
