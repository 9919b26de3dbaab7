"""Prompts from JSON Lines files, one episode for each record."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from aligner_lib.datasets.json_lines import text_of
from aligner_lib.datasets.load.turns import Turn, as_message, turns_in_record
from aligner_lib.datasets.tool_calls import calling_message
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import (
    SPLITS,
    Environment,
    Message,
    Prompt,
    hold_out_prompts,
    require,
)
from data.fields import TURN_METADATA, is_empty

KEYS = ("prompt", "messages", "text")
MESSAGE_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "weight"}


@dataclass(frozen=True)
class PromptRecord:
    """One line of a file: the prompt and the other keys."""

    prompt: Prompt
    fields: dict[str, Any]

    @property
    def question(self) -> str:
        """The prompt as a text; for messages, the content of the last message."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


class PromptFiles(Environment):
    """An environment whose episodes are the lines of a file: {"prompt"}, {"messages"} or {"text"}, and other keys.

    prompts: {train: FILE, validation: FILE}; or one FILE, of which the share `held_out` is for validation, always the same
    lines. A `prompt` is a text, which becomes a user's turn of the chat template, or a list of turns like `messages`; a `text`
    is used unchanged.
    """

    def __init__(self, split: str = "train", *, prompts: Any, held_out: float = 0.2):
        super().__init__(split)
        self.records = read_split(prompts, split, held_out, parse_prompt)
        self.size = len(self.records)

    def reset(self, seed: int) -> Prompt:
        self.record = self.records[seed % self.size]
        return self.record.prompt


def read_split(prompts: Any, split: str, held_out: float, parse) -> list:
    """The records of a split, each converted by `parse`. prompts: a file, or a file for each split.

    When one file is split, all records with the same prompt go to the same split.
    """
    if isinstance(prompts, dict):
        require(
            set(prompts) == set(SPLITS) and all(isinstance(file, str | Path) for file in prompts.values()),
            f"prompts={prompts}: give one file, or {{train: FILE, validation: FILE}}",
        )
        return read_records(prompts[split], parse)
    require(isinstance(prompts, str | Path), f"prompts={prompts!r}: the value must be a .jsonl file")
    records = read_records(prompts, parse)
    return hold_out_prompts(records, held_out, lambda record: repr(record.prompt))[split]


def read_records(file: str | Path, parse) -> list:
    """The records of a file, each converted by `parse`. Raises UserError with FILE:LINE for an unusable line."""
    path = Path(file).expanduser()
    try:
        # not splitlines(): the texts in JSON may contain other line separators
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{path} can't be read: {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} can't be read: {error}; {_json_lines(path)}") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(parse(_value(line, path)))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} can't be used: {error}") from None
    require(bool(records), f"{path} has no records")
    return records


def _value(line: str, path: Path) -> dict[str, Any]:
    """The object of a line. Raises ValueError, with the cure if the file is of another kind, such as CSV or a list in JSON."""
    is_object = line.lstrip().startswith("{")
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(str(error) if is_object else f"{error}; {_json_lines(path)}") from None
    if not is_object:
        raise ValueError(f"the line is not a JSON object; {_json_lines(path)}")
    return value


def _json_lines(path: Path) -> str:
    """The cure for a file of another kind."""
    command = f"aligner data {shlex.quote(str(path))} --to prompts --out DIR"
    return (
        f"environments read JSON Lines: `{command}` writes such a file of prompts alone, and "
        'pandas\' `to_json(FILE, orient="records", lines=True)` one with all columns'
    )


def parse_prompt(value: dict[str, Any]) -> PromptRecord:
    """The record of a line with exactly one of KEYS. Raises ValueError for any other line."""
    keys = [key for key in KEYS if key in value]
    if len(keys) != 1:
        raise ValueError(
            f"the line has {' and '.join(keys) or 'none'} of {', '.join(KEYS)}; give exactly 1 key: {_key_cure(value, keys)}"
        )
    (key,) = keys
    fields = {other: content for other, content in value.items() if other != key}
    # `aligner data` writes turns
    if key == "messages" or (key == "prompt" and isinstance(value[key], list)):
        return PromptRecord(_messages(value[key], key), fields)
    if not (prompt := text_of(value, key)).strip():
        raise ValueError(f"{key!r} is empty")
    return PromptRecord(prompt if key == "text" else [{"role": "user", "content": prompt}], fields)


def _key_cure(value: dict[str, Any], keys: list[str]) -> str:
    if keys:
        return f"remove or rename {' or '.join(keys)}"
    return f"rename the key of the prompt to 'prompt'; the line has {', '.join(value) or 'no key'}"


def _messages(prompt: Any, key: str) -> list[Message]:
    """The turns under a key. Raises ValueError for other values, for an unread key, and for turns that end with the assistant's or
    with a blank one of the user's."""
    is_list = isinstance(prompt, list) and all(isinstance(turn, dict) and "role" in turn for turn in prompt)
    if not is_list or not prompt:
        raise ValueError(f"{key} is not a list of {{role, content}}")
    turns = turns_in_record({"messages": prompt})
    for unread, content in chain.from_iterable(turn.items() for turn in prompt):
        if unread not in MESSAGE_KEYS | TURN_METADATA and not is_empty(content):
            raise ValueError(f"a turn of {key} has the key {unread!r}, which is not read: remove the key")
    if turns[-1].role == "Assistant":
        raise ValueError(f"the last turn of {key} is not the user's")
    if turns[-1].role == "User" and not turns[-1].text.strip():
        raise ValueError(f"the last turn of {key} is empty")
    return [_message(turn, value.get("name")) for turn, value in zip(turns, prompt)]


def _message(turn: Turn, name: str | None) -> Message:
    """A turn of a file with its name and its tool calls, the arguments as objects."""
    message = calling_message(turn.calls, turn.text) if turn.calls else as_message(turn.role, turn.text)
    return message | ({"name": name} if name else {})
