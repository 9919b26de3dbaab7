"""The task of notebook 12: questions of the bundled pairs that ask for a word or a number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from aligner_lib.run_folder.turns import last_turn
from data.forms import instruction_in, without_instruction

FORMS = ("includes", "this_number")


def asks_for_an_item(pair: dict) -> bool:
    """Whether the prompt of a pair {prompt, chosen, rejected} asks for a word or a number."""
    instruction = instruction_in(last_turn(pair["prompt"]))
    return instruction is not None and instruction.form in FORMS


def prompt_records(pairs: Sequence[dict]) -> list[dict]:
    """The prompts of pairs that ask for an item, without repetitions: {messages, item, question}.

    item: the requested word or number; question: the user's turn without the request.
    """
    turns = dict.fromkeys(last_turn(pair["prompt"]) for pair in pairs if asks_for_an_item(pair))
    return [fields_of(turn) | {"messages": [{"role": "user", "content": turn}]} for turn in turns]


def fields_of(turn: str) -> dict[str, str]:
    """The fields of a user's turn: the requested item, and the question."""
    ((_, item),) = instruction_in(turn).gaps
    return {"item": item, "question": without_instruction(turn)}


def write_prompts(pairs: Sequence[dict], path: Path) -> Path:
    """Write the records of `prompt_records` as JSON Lines, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in prompt_records(pairs)), encoding="utf-8")
    return path
