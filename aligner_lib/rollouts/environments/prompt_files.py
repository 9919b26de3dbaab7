"""Prompts from JSON Lines files, one episode a record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import SPLITS, Environment, Prompt, hold_out, require

KEYS = ("prompt", "messages", "text")


@dataclass(frozen=True)
class Record:
    """One line: the prompt, and the other keys."""

    prompt: Prompt
    fields: dict[str, Any]

    @property
    def question(self) -> str:
        """The prompt as a text: of messages, what the last one says."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


class PromptFiles(Environment):
    """An environment whose episodes are the lines of a file, {"prompt"}, {"messages"} or {"text"} and other keys.

    prompts: {train: FILE, validation: FILE}; or one file, of which `held_out` is the validation split's, always the same.
    A prompt of a line that is a text becomes a user's turn of the chat template; with `text` it is taken as it is.
    """

    def __init__(self, split: str = "train", *, prompts: Any, held_out: float = 0.2):
        super().__init__(split)
        self.records = read_split(prompts, split, held_out, parse_prompt)
        self.size = len(self.records)

    def reset(self, seed: int) -> Prompt:
        self.record = self.records[seed % self.size]
        return self.record.prompt


def read_split(prompts: Any, split: str, held_out: float, parse) -> list:
    """What `parse` makes of the records of a split: prompts is a file, or a file for each split.

    Of one file, records with the same prompt are on the same side.
    """
    if isinstance(prompts, dict):
        require(
            set(prompts) == set(SPLITS) and all(isinstance(file, str | Path) for file in prompts.values()),
            f"prompts={prompts}: give one file, or {{train: FILE, validation: FILE}}",
        )
        return read_records(prompts[split], parse)
    require(isinstance(prompts, str | Path), f"prompts={prompts!r}: it must be a .jsonl file")
    by_prompt: dict[str, list] = {}
    for record in read_records(prompts, parse):
        by_prompt.setdefault(repr(record.prompt), []).append(record)
    return list(chain(*hold_out(list(by_prompt.values()), held_out)[split]))


def read_records(file: str | Path, parse) -> list:
    """What `parse` makes of each line. Raises UserError with FILE:LINE for one that can't be used."""
    path = Path(file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").split(
            "\n"
        )  # a JSON text may have other ends of lines in it
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read: {error}") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("it is no JSON object")
            records.append(parse(value))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} can't be used: {error}") from None
    require(bool(records), f"{path} has no records")
    return records


def parse_prompt(value: dict[str, Any]) -> Record:
    """A record with one of KEYS. Raises ValueError for one without."""
    keys = [key for key in KEYS if key in value]
    if len(keys) != 1:
        raise ValueError(f"it has {' and '.join(keys) or 'none'} of {', '.join(KEYS)}; give exactly one")
    prompt = value[keys[0]]
    fields = {key: one for key, one in value.items() if key != keys[0]}
    if keys[0] == "messages":
        if not prompt or not isinstance(prompt, list) or not all(map(_is_message, prompt)):
            raise ValueError("messages is no list of {role, content}")
        return Record([{"role": one["role"], "content": one["content"]} for one in prompt], fields)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"{keys[0]} is no text, or empty")
    return Record(prompt if keys[0] == "text" else [{"role": "user", "content": prompt}], fields)


def _is_message(one: Any) -> bool:
    return isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("role", "content"))
