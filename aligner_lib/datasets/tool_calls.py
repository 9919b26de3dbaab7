"""Tool calls in conversations: how a response writes a call, and how tools reach a template that does not know them.

The messages have OpenAI's form (`data.tools`). Sources: the chat templates of Qwen2.5 and Llama 3.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from aligner_lib.errors import UserError
from data.tools import Tool, ToolCall, checked_calls

CallForm = Literal["tags", "object"]
"""How a template writes the calls of a turn.

tags: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` for each call (Hermes, Qwen, SmolLM3, and the default form).
object: `{"name": …, "parameters": {…}}` in place of a text, and `; ` between several calls (Llama 3).
"""

BEGIN, END = "<tool_call>", "</tool_call>"
TAGGED = re.compile(rf"{BEGIN}(.*?)(?:{END}|\Z)", re.DOTALL)
ARGUMENT_KEYS = {"tags": "arguments", "object": "parameters"}
INSTRUCTION = """\
You can call these functions:
{tools}

To call a function, write its name and its arguments in this form. You will read the result in the next turn.
<tool_call>
{{"name": "function", "arguments": {{"argument": "value"}}}}
</tool_call>"""


class UnreadableCall(NamedTuple):
    """A call that cannot be read."""

    problem: str
    """A sentence for the policy."""


# ---- calls in a response --------------------------------------------------------------------------------------------


def read_calls(text: str, form: CallForm = "tags") -> tuple[str, list[ToolCall | UnreadableCall]]:
    """The text of a response outside its calls, and the calls in their order."""
    if form == "tags":
        return TAGGED.sub("", text).strip(), [_call(call, form) for call in TAGGED.findall(text)]
    calls = _objects(text.strip())
    return ("", calls) if calls else (text, [])


def written_calls(calls: Sequence[ToolCall], form: CallForm = "tags") -> str:
    """The text of calls, as `read_calls` reads them."""
    objects = [
        json.dumps({"name": call.name, ARGUMENT_KEYS[form]: call.arguments}, ensure_ascii=False)
        for call in calls
    ]
    return (
        "; ".join(objects) if form == "object" else "\n".join(f"{BEGIN}\n{call}\n{END}" for call in objects)
    )


def in_default_form(text: str, form: CallForm) -> str:
    """A response of a template with the call form `form`, in the form `tags`, which environments read."""
    if form == "tags":
        return text
    content, calls = read_calls(text, form)
    return content if not calls else written_calls(calls)


def _call(text: str, form: CallForm) -> ToolCall | UnreadableCall:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return UnreadableCall(f"the call is not JSON: {error}")
    return _call_of(value, form)


def _call_of(value: Any, form: CallForm) -> ToolCall | UnreadableCall:
    key = ARGUMENT_KEYS[form]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return UnreadableCall(f'the call must have the form {{"name": "function", "{key}": {{…}}}}')
    arguments = value.get(key, {})
    if not isinstance(arguments, dict):
        return UnreadableCall(f"the {key} of {value['name']} must be a JSON object")
    return ToolCall(value["name"], arguments)


def _objects(text: str) -> list[ToolCall]:
    """The calls of a text that consists of call objects; empty for any other text."""
    calls: list[ToolCall] = []
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        call = _call_of(value, "object")
        if isinstance(call, UnreadableCall) or "parameters" not in value:
            return []
        calls.append(call)
        place += len(text[place:]) - len(text[place:].lstrip("; \n"))
    return calls


# ---- messages -------------------------------------------------------------------------------------------------------


def calling_message(calls: Sequence[ToolCall], content: str = "") -> dict[str, Any]:
    """An assistant's message with calls, in the form that templates read (arguments as objects)."""
    functions = [{"type": "function", "function": call._asdict()} for call in calls]
    return {"role": "assistant", "content": content, "tool_calls": functions}


def uses_tools(messages: Sequence[dict], tools: Sequence[Tool]) -> bool:
    """Whether a conversation has tools, calls or results."""
    return bool(tools) or any(message.get("tool_calls") or message["role"] == "tool" for message in messages)


def in_words(messages: Sequence[dict], tools: Sequence[Tool]) -> list[dict[str, str]]:
    """A conversation with tools as turns of system, user and assistant, for a template that does not know tools: the default
    form.

    The system turn lists the tools, the assistant's text contains the calls in the form `tags`, and a user's turn has the
    results of a turn, each as `<tool_response>RESULT</tool_response>`.
    """
    turns: list[dict[str, str]] = []
    after_result = False
    for message in messages:
        content = message["content"] or ""
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if after_result:
                turns[-1]["content"] += f"\n{content}"
            else:
                turns.append({"role": "user", "content": content})
        else:
            calls = checked_calls(message["tool_calls"]) if message.get("tool_calls") else []
            content = "\n".join(filter(None, (content, written_calls(calls))))
            turns.append({"role": message["role"], "content": content})
        after_result = message["role"] == "tool"
    if not tools:
        return turns
    instruction = INSTRUCTION.format(
        tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    )
    if turns and turns[0]["role"] == "system":
        instruction = "\n\n".join(filter(None, (turns.pop(0)["content"], instruction)))
    return [{"role": "system", "content": instruction}, *turns]


def form_of_probe(written: str, folder: object) -> CallForm:
    """The call form of a template, from what the template writes for the probe's call.

    Raises UserError for a form that `read_calls` does not read.
    """
    for form in ("tags", "object"):
        if read_calls(written, form)[1] == [PROBE_CALL]:
            return form
    raise UserError(
        f"{folder}: the chat template writes a tool call as {written.strip()!r}, which this project does not read: use a model "
        'whose template writes <tool_call>{"name": …, "arguments": …}</tool_call> or {"name": …, "parameters": …}, or give '
        "model.data.chat_template=plain"
    )


PROBE_CALL = ToolCall("probe_tool", {"probe": "value"})
PROBE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": PROBE_CALL.name,
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {"probe": {"type": "string", "description": "A text."}},
            "required": ["probe"],
        },
    },
}
PROBE_MESSAGES = [{"role": "user", "content": "?"}, calling_message([PROBE_CALL])]
