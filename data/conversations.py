"""Turns of a conversation in other projects' formats: `role` and `content`, or `from` and `value`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from data.fields import TURN_METADATA, ignored_keys, require_unicode
from data.report import Reason, Unusable
from data.tools import check_results, checked_calls

Message = dict[str, Any]  # role, content; `weight` 0 for an answer without a loss; `tool_calls`

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
# The roles of calls and their results, in OpenAI's form (`tool`), in LLaMA-Factory's ShareGPT form, and in Hermes's data (`tool`).
CALL = "function_call"
TOOL_ROLES = {CALL: "assistant", "tool": "tool", "observation": "tool"}
# Anthropic has calls and results as parts of a turn's content.
PART_CURES = {
    "tool_use": ": give calls as OpenAI's tool_calls",
    "tool_result": ": give results as turns of the role 'tool'",
}
RESULT = re.compile(r"\s*<tool_response>(.*)</tool_response>\s*", re.DOTALL)
# The beginning of a list of turns that was written as a text, as JSON or as Python writes lists.
TURNS = re.compile(r"""\s*\[\s*\{\s*['"](?:.*['"])?(?:role|from)['"]\s*:""", re.DOTALL)
HH_ANSWER = "\n\nAssistant:"
HH_OPENING = re.compile(r"\s*Human:")
HH_TURN = re.compile(r"\n\n(Human|Assistant):")
# A prompt as `aligner data hh` writes it; an empty line may have spaces.
PLAIN_PROMPT = re.compile(r"\s*(?=(?:System|User):)(.*)\n[^\S\n]*\n\s*Assistant:\s*", re.DOTALL)
PLAIN_TURN = re.compile(r"(?:\A|\n[^\S\n]*\n\s*)(System|User|Assistant):")
# A whole prompt that a chat template has written, to the assistant's opening: NeMo's, ChatML (the opening may have thoughts),
# Llama 3, Gemma, and Llama 2 and Mistral. A question may begin with a mark, too.
TEMPLATED = re.compile(
    r"""(?:<s>|<bos>|<\|begin_of_text\|>|<\|endoftext\|>)?(?:
        <extra_id_\d>[^\n]*\n.*<extra_id_[1-9]>[^\n]*
        |<\|im_start\|>\w+\n.*<\|im_start\|>assistant(?:\s*<think>(?:\s*</think>)?)?
        |<\|start_header_id\|>\w+<\|end_header_id\|>.*<\|start_header_id\|>assistant<\|end_header_id\|>
        |<start_of_turn>\w+\n.*<start_of_turn>model
        |\s?\[INST\].*\[/INST\]
    )""",
    re.DOTALL | re.VERBOSE,
)
TURN_KEYS = frozenset({"role", "content", "from", "value", "weight"})
TOOL_KEYS = {"assistant": frozenset({"tool_calls"}), "tool": frozenset({"tool_call_id", "name"})}


def messages_of(value: Any, key: str, *, with_tools: bool = False) -> list[Message]:
    """The turns under a column `key`; a text is a user's turn. with_tools: turns may have calls, and may be their results.

    Raises Unusable for a value that cannot be read as turns.
    """
    if isinstance(value := with_turns(value, key), str):
        return [{"role": "user", "content": _text(value, repr(key))}]
    return turns_of(value, key, with_tools=with_tools)


def with_turns(value: Any, key: str) -> Any:
    """A value, or the list of turns that the value is the text of: as JSON, or as pandas writes lists. Raises Unusable for the
    text of a list of turns that is neither, such as numpy's, which lacks the commas."""
    if not isinstance(value, str) or not TURNS.match(value):
        return value
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return turns if _are_turns(turns := read(value)) else value
    with suppress(ValueError, RecursionError):
        json.JSONDecoder().raw_decode(value.lstrip())
        return value  # a list with words after it is an answer
    raise Unusable(
        Reason.WRONG_TYPE,
        f"{key!r} is the text of a list of turns, but not JSON: write lists with json.dumps, or use JSON Lines or parquet",
    )


def _are_turns(value: Any) -> bool:
    turns = value if isinstance(value, list) else []
    known = ROLES.keys() | TOOL_ROLES.keys()
    roles = [turn.get("role", turn.get("from")) if isinstance(turn, dict) else None for turn in turns]
    with_text = [turn for turn in turns if isinstance(turn, dict) and turn.keys() & {"content", "value"}]
    return all(isinstance(role, str) and role.lower() in known for role in roles) and bool(with_text)


def turns_of(value: Any, key: str, *, with_tools: bool = False) -> list[Message]:
    """The turns under a column `key`: a list, or its text, because CSV has only texts. Raises Unusable as `messages_of`."""
    if isinstance(value := with_turns(value, key), str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Unusable(
                Reason.WRONG_TYPE, f"{key!r} is a text, but must be a list of turns in JSON"
            ) from None
    if not isinstance(value, list) or not value:
        raise Unusable(Reason.WRONG_TYPE, f"{key!r} is neither a text nor a list of turns")
    messages = [
        _message(turn, f"turn {number} of {key!r}", with_tools) for number, turn in enumerate(value, start=1)
    ]
    if with_tools:
        with unusable():
            # a turn `function_call` has its calls only as a message
            check_results(
                [message | turn for message, turn in zip(messages, value)],
                [message["role"] for message in messages],
            )
    return messages


def answer_of(value: Any, key: str) -> str:
    """The text of a response, from a text or from a single assistant turn."""
    if isinstance(value := with_turns(value, key), str):
        return _text(value, repr(key))
    messages = messages_of(value, key)
    if [message["role"] for message in messages] != ["assistant"]:
        raise Unusable(Reason.BAD_TURN, f"{key!r} is not a single turn of the assistant's")
    return messages[0]["content"]


def hh_messages(text: str, key: str) -> list[Message] | None:
    """The turns of a text in HH's format, `Human:` and `Assistant:` paragraphs after an empty line; None for other texts.

    The first paragraph may lack the empty line, if the text also has an answer.
    """
    if HH_ANSWER in text and HH_OPENING.match(text):
        text = f"\n\n{text.lstrip()}"
    before, *pieces = HH_TURN.split(text)
    if before or not pieces:
        return None
    roles = ["user" if name == "Human" else "assistant" for name in pieces[::2]]
    return [
        {"role": role, "content": _text(content.strip(), repr(key))}
        for role, content in zip(roles, pieces[1::2])
    ]


def is_templated(value: Any) -> bool:
    """Whether a value is a prompt that a chat template has written, as NeMo-Aligner's guide to DPO asks for."""
    return isinstance(value, str) and TEMPLATED.fullmatch(value.strip()) is not None


def is_plain_prompt(value: Any) -> bool:
    """Whether a value is a prompt in the plain form of `aligner data hh`: from `User:` or `System:` to an empty `Assistant:`."""
    return isinstance(value, str) and PLAIN_PROMPT.fullmatch(value) is not None


def hh_prompt(text: str, key: str) -> list[Message] | None:
    """The turns of a prompt whose last turn, the assistant's, is empty: in HH's format (`Human:`), or in the plain form of
    `aligner data hh` (`User:`, also `System:`). None for other texts, such as a question that only begins with `User:`."""
    if plain := _plain_turns(text, key):
        return plain
    before, mark, after = text.rpartition(HH_ANSWER)
    if not mark or after.strip():
        return None
    return hh_messages(f"\n\n{before.lstrip()}" if HH_OPENING.match(before) else before, key)


def _plain_turns(text: str, key: str) -> list[Message] | None:
    """The turns of a prompt in the plain form; None unless they are a prompt that a template can write."""
    if not (plain := PLAIN_PROMPT.fullmatch(text)):
        return None
    _, *pieces = PLAIN_TURN.split(plain[1])
    roles, texts = [name.lower() for name in pieces[::2]], [content.strip() for content in pieces[1::2]]
    is_prompt = roles == ["system"] or (roles[-1] == "user" and "system" not in roles[1:])
    if not is_prompt or not all(texts):
        return None
    return [{"role": role, "content": _text(content, repr(key))} for role, content in zip(roles, texts)]


def _message(turn: Any, place: str, with_tools: bool) -> Message:
    if not isinstance(turn, dict):
        raise Unusable(Reason.WRONG_TYPE, f"{place} is not an object")
    roles = ROLES | TOOL_ROLES if with_tools else ROLES
    name = turn.get("role", turn.get("from"))
    if not isinstance(name, str) or name.lower() not in roles:  # NeMo-Aligner writes User and Assistant
        raise Unusable(Reason.UNKNOWN_ROLE, f"{place}: {name!r}; the roles are {', '.join(roles)}")
    role = roles[name.lower()]
    of_tools = TOOL_KEYS.get(role, frozenset()) if with_tools else frozenset()
    ignored_keys(turn, TURN_KEYS | of_tools, TURN_METADATA)
    if name.lower() == CALL:
        turn = turn | {"content": "", "tool_calls": _written_calls(turn, place)}
    calls = turn.get("tool_calls") or []
    message = {"role": role, "content": _content(turn, place, bool(calls) or role == "tool")}
    if role == "tool" and (tagged := RESULT.fullmatch(message["content"])):
        message["content"] = tagged[1].strip()  # templates write the tags
    if calls:
        with unusable(f"{place}: "):
            functions = [call._asdict() for call in checked_calls(calls)]
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    weight = turn.get("weight", 1)
    if weight not in (None, 0, 1):
        raise Unusable(Reason.WRONG_TYPE, f"{place} has the weight {weight!r}, but must be 0 or 1")
    return message | {"weight": 0} if weight == 0 and role == "assistant" else message


def _written_calls(turn: dict[str, Any], place: str) -> list[Any]:
    """The calls of a turn with the role CALL, whose text is the JSON of a call or of a list of calls."""
    text = turn.get("value", turn.get("content"))
    try:
        calls = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Unusable(
            Reason.WRONG_TYPE,
            f"{place} has the role {CALL!r}, but its text is not the JSON of a call: {text!r:.60}",
        ) from None
    return calls if isinstance(calls, list) else [calls]


def _content(turn: dict[str, Any], place: str, may_be_missing: bool) -> str:
    content = _joined(turn.get("content", turn.get("value")), place)
    return "" if may_be_missing and content in (None, "") else _text(content, place)


@contextmanager
def unusable(place: str = "") -> Iterator[None]:
    """Turns the ValueError of tools, calls or results into Unusable. place: put before the message."""
    try:
        yield
    except ValueError as error:
        raise Unusable(Reason.WRONG_TYPE, f"{place}{error}") from error


def _joined(content: Any, place: str) -> Any:
    """Content in several text parts, joined to one text; other content unchanged. Raises Unusable for a part of another type."""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content
    for part in content:
        if (kind := part.get("type")) != "text":
            cure = PART_CURES.get(str(kind), "")
            raise Unusable(
                Reason.WRONG_TYPE, f"{place} has a part of type {kind!r}, but only 'text' is read{cure}"
            )
    return "".join(str(part.get("text") or "") for part in content)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise Unusable(Reason.WRONG_TYPE, f"{place} is {type(value).__name__}, not text")
    if not value.strip():
        raise Unusable(Reason.EMPTY_TEXT, f"{place} is blank")
    require_unicode(value, place)
    return value
