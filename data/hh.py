"""Anthropic HH pairs as the comparisons of reward modelling and the prompts of PPO."""

import itertools
import os
from collections.abc import Iterable
from functools import partial

# json.dumps uses this function for strings; the direct call saves the set-up
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import NamedTuple

from data.atomic_files import atomic_text_files
from data.fields import ignored_keys, require_length, text_field
from data.readers import RawRecord, parsed, read_records
from data.report import Reason, Report, Unusable
from data.sources import resolve

HUMAN = "\n\nHuman: "
ASSISTANT = "\n\nAssistant: "
KEYS = frozenset({"chosen", "rejected"})


class Conversation(NamedTuple):
    """A conversation up to its last answer: `User: …` and `Assistant: …` with empty lines between the turns."""

    prompt: str  # ends in "Assistant:", without a space
    response: str

    @property
    def text(self) -> str:
        """Prompt, a space, and response: the text of a line of the comparisons."""
        return f"{self.prompt} {self.response}"


class ComparisonPair(NamedTuple):
    """Two conversations that differ only in the last answer."""

    chosen: Conversation
    rejected: Conversation


def format_hh(
    raw: str | os.PathLike | Iterable[str | os.PathLike],
    out: str | os.PathLike,
    split: str,
    *,
    max_chars: int | None = None,
    strict: bool = False,
    subset: str | None = None,
) -> Report:
    """Write out/{split}_comparisons.jsonl (chosen, then rejected) and out/{split}_prompts.jsonl.

    Records are streamed. raw: file(s), a hub data set name (with `subset` such as "harmless-base"), or a name known to
    `resolve`. max_chars: longest prompt plus answer of either side, in characters. Lines are separated by newlines, without a
    newline at the end, as in the NeMo tutorial's script.

    A record with a key that is neither read nor metadata (`data.fields`) is left out; metadata is counted in the notes. Raises
    DataError when no record is usable, or at the first bad record when strict.
    """
    source = resolve(raw, "hh", split=split, subset=subset)
    report = Report(strict=strict)
    paths = Path(out) / f"{split}_comparisons.jsonl", Path(out) / f"{split}_prompts.jsonl"
    with atomic_text_files(*paths) as (comparisons, prompts):
        separator = ""
        parse = partial(_usable_pair, max_chars=max_chars)
        for _, (pair, ignored) in parsed(read_records(source.paths), parse, report):
            compared, prompt = _lines(pair)
            comparisons.write(separator + compared)
            prompts.write(separator + prompt)
            separator = "\n"
            report.kept += 1
            report.notes.update(ignored)
            # The reference keeps such pairs (the hub's data has some), so they are counted, not dropped.
            if not (pair.chosen.response and pair.rejected.response):
                report.notes["a pair with an empty answer"] += 1
        report.require_usable(source.name)
    report.written = {paths[0]: 2 * report.kept, paths[1]: report.kept}
    return report


def parse_conversation(text: str) -> Conversation:
    """Parse a raw HH conversation; nothing is stripped.

    Raises Unusable when a turn does not split in two.
    """
    prompt = response = history = ""
    for number, turn in enumerate(filter(None, text.split(HUMAN)), start=1):
        parts = turn.split(ASSISTANT)
        if len(parts) != 2:
            raise Unusable(
                Reason.BAD_TURN, f"turn {number} has {len(parts) - 1} answers, but needs exactly 1"
            )
        body, response = parts
        prompt = f"{history}User: {body}\n\nAssistant:"
        history = f"{prompt} {response}\n\n"
    if not prompt:
        raise Unusable(Reason.EMPTY_TEXT, "no turn")
    return Conversation(prompt, response)


def parse_pair(record: dict[str, object], max_chars: int | None = None) -> ComparisonPair:
    """Parse a raw HH record. max_chars: as in `format_hh`.

    Raises Unusable, with the reason why the record is left out of the comparisons.
    """
    pair = ComparisonPair(*(parse_conversation(text_field(record, side)) for side in ("chosen", "rejected")))
    if pair.chosen.prompt != pair.rejected.prompt:
        position = _first_difference(pair.chosen.prompt, pair.rejected.prompt)
        raise Unusable(Reason.DIFFERENT_PROMPTS, f"from character {position} on")
    require_length(max(len(conversation.text) for conversation in pair), max_chars)
    return pair


def _first_difference(first: str, second: str) -> int:
    """Position, from 1, of the first character in which two different texts differ."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in same) + 1


def _usable_pair(record: RawRecord, max_chars: int | None) -> tuple[ComparisonPair, list[str]]:
    """A pair, and the notes on metadata that the output lacks."""
    return parse_pair(record.value, max_chars), ignored_keys(record.value, KEYS)


def _lines(pair: ComparisonPair) -> tuple[str, str]:
    """A pair's two lines of comparisons, and its line of prompts."""
    # The prompt, most of the text, is escaped only once, because escaping takes most of the conversion's time.
    start = '{"text": ' + encode_basestring_ascii(pair.chosen.prompt)[:-1]
    return f"{start} {_end(pair.chosen)}\n{start} {_end(pair.rejected)}", f'{start}"}}'


def _end(conversation: Conversation) -> str:
    return encode_basestring_ascii(conversation.response)[1:] + "}"
