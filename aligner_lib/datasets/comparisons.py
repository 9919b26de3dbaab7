"""The preference pairs of a comparisons file, as texts."""

from __future__ import annotations

import os
from collections.abc import Callable

from aligner_lib.datasets.json_lines import numbered_lines, parse, text_of

ASSISTANT = "\n\nAssistant:"


def read_pairs(path) -> list[dict]:
    """Read pairs from a comparisons file.

    A line is {"prompt", "chosen", "rejected"}, or {"text"} with a line for the chosen text followed by a line for the rejected
    text. Raises FileNotFoundError for a missing file, ValueError for a line without such a record, and if lines or prompts do not
    match.
    """
    records = _records(path)
    if records and "chosen" in records[0][1]:
        return [_of_line(path, number, _of_turns, record) for number, record in records]
    texts = [_of_line(path, number, _of_text, record) for number, record in records]
    if len(texts) % 2:
        raise ValueError(
            f"{path}: {len(texts)} lines; pairs need an even number, chosen and rejected in turn"
        )
    return [_pair(chosen, rejected) for chosen, rejected in zip(texts[::2], texts[1::2])]


def _records(path) -> list[tuple[int, dict]]:
    """The numbers of the lines and their records."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: `aligner data` writes the comparisons of HH")
    lines = [(number, line) for number, line in numbered_lines(path) if line.strip()]
    return [(number, _of_line(path, number, parse, line)) for number, line in lines]


def _of_line(path, number: int, read: Callable, line):
    """The result of `read` for a line or its record. Raises ValueError with the place of a faulty line."""
    try:
        return read(line)
    except KeyError as error:
        fault = f"no key {error}; a pair has the keys 'prompt', 'chosen' and 'rejected', or is two lines with the key 'text'"
    except (TypeError, AttributeError, IndexError):
        fault = "a prompt or an answer is neither a text nor a list of turns {'role', 'content'}"
    except ValueError as error:
        fault = str(error)
    raise ValueError(f"{path}, line {number}: {fault}")


def _of_text(record: dict) -> str:
    """The text of a record. Raises KeyError without the key, ValueError for a value that is no text."""
    return text_of({"text": record["text"]}, "text")


def _of_turns(record: dict) -> dict:
    """Convert a record of turns or texts to a pair {prompt, chosen, rejected}. The prompt has paragraphs `User: …`."""
    turns = (
        record["prompt"]
        if isinstance(record["prompt"], list)
        else [{"role": "user", "content": record["prompt"]}]
    )
    prompt = "\n\n".join(f"{turn['role'].capitalize()}: {turn['content'].strip()}" for turn in turns)
    answers = {
        side: record[side] if isinstance(record[side], str) else record[side][-1]["content"]
        for side in ("chosen", "rejected")
    }
    return {"prompt": f"{prompt}{ASSISTANT}"} | {side: text.strip() for side, text in answers.items()}


def _pair(chosen: str, rejected: str) -> dict:
    """Convert two texts to a pair {prompt, chosen, rejected}. The texts are equal up to the last answer."""
    if ASSISTANT not in chosen:
        raise ValueError(f"a chosen text has no answer after 'Assistant:': {chosen[:60]!r}")
    end = chosen.rfind(ASSISTANT) + len(ASSISTANT)
    if chosen[:end] != rejected[:end]:
        raise ValueError(
            f"a chosen and a rejected text have different prompts: {chosen[:60]!r} and {rejected[:60]!r}"
        )
    return {"prompt": chosen[:end], "chosen": chosen[end:].strip(), "rejected": rejected[end:].strip()}
