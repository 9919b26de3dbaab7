"""Dolly records as the input/output files of supervised fine-tuning."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data.atomic_files import atomic_text_files
from data.fields import ignored_keys, require_length, text_field
from data.readers import RawRecord, parsed, read_records
from data.report import DataError, Report, Skip
from data.sources import resolve

if TYPE_CHECKING:
    from numpy.random import RandomState

KEYS = frozenset({"instruction", "context", "response", "category"})


class Example(NamedTuple):
    """A formatted record."""

    prompt: str  # instruction and context, stripped: the split keeps equal prompts together
    line: str  # the JSON line of the output file


def format_dolly(
    raw: str | os.PathLike | Iterable[str | os.PathLike],
    out: str | os.PathLike,
    *,
    seed: int = 1234,
    validation_fraction: float = 0.1,
    max_chars: int | None = None,
    strict: bool = False,
) -> Report:
    """Write out/train.jsonl and out/validation.jsonl with the keys input, output, category.

    raw: file(s), a hub data set name, or a name known to `resolve`. validation_fraction: share of the distinct prompts, from 0
    to below 1. max_chars: longest input plus output, in characters.

    `seed` decides whether a context precedes its instruction, as in the NeMo tutorial's script. When training has no room for
    both, it cuts the longer of the two (`aligner_lib.datasets.load.sft.shorten`), so a line does not record the order. The split
    depends only on `seed` and the prompts, and puts equal prompts on the same side.

    A record with a key that is neither read nor metadata (`data.fields`) is left out; metadata is counted in the notes. Raises
    DataError when no record is usable, or at the first bad record when strict.
    """
    if not 0 <= validation_fraction < 1:
        raise DataError(f"validation_fraction is {validation_fraction}, but must be at least 0 and below 1")
    source = resolve(raw, "dolly")
    report = Report(strict=strict)
    examples = _format_records(read_records(source.paths), seed, max_chars, report)
    report.require_usable(source.name)
    held_out = _choose_validation({example.prompt for example in examples}, validation_fraction, seed)
    if validation_fraction and not held_out:
        raise DataError(
            f"{source.name} has a single usable prompt, too few for a split: set validation_fraction=0"
        )
    paths = Path(out) / "train.jsonl", Path(out) / "validation.jsonl"
    report.written = dict.fromkeys(paths, 0)
    with atomic_text_files(*paths) as streams:
        for example in examples:
            side = example.prompt in held_out
            streams[side].write(example.line + "\n")
            report.written[paths[side]] += 1
    return report


def _format_records(
    records: Iterable[RawRecord | Skip], seed: int, max_chars: int | None, report: Report
) -> list[Example]:
    from numpy.random import RandomState

    # RandomState(seed) draws the numbers that np.random.randint draws after np.random.seed(seed).
    generator = RandomState(seed)

    def parse(record: RawRecord) -> tuple[Example, list[str]]:
        context_first = _draw_order(record.value.get("context"), generator)
        return _format_record(record, context_first, max_chars), ignored_keys(record.value, KEYS)

    examples = []
    for _, (example, ignored) in parsed(records, parse, report):
        examples.append(example)
        report.kept += 1
        report.notes.update(ignored)
    return examples


def _draw_order(context: object, generator: "RandomState") -> bool:
    """Whether the context comes first. As in the reference, records that are left out later also use a draw."""
    if not isinstance(context, str) or not context.strip():
        return False
    return generator.randint(0, 2) == 0


def _format_record(record: RawRecord, context_first: bool, max_chars: int | None) -> Example:
    raw_instruction = text_field(record.value, "instruction")
    instruction = raw_instruction.strip()
    context = text_field(record.value, "context", may_be_blank=True).strip()
    output = text_field(record.value, "response")
    category = text_field(record.value, "category", may_be_blank=True)
    if not context:
        input_text = raw_instruction
    elif context_first:
        input_text = f"{context}\n\n{instruction}"
    else:
        input_text = f"{instruction}\n\n{context}"
    require_length(len(input_text) + len(output), max_chars)
    line = json.dumps({"input": input_text, "output": output, "category": category})
    return Example(f"{instruction}\n\n{context}", line)


def _choose_validation(prompts: set[str], fraction: float, seed: int) -> set[str]:
    """The prompts with the lowest seeded hashes: `fraction` of them, at least one, never all."""
    if not fraction:
        return set()

    def rank(prompt: str) -> bytes:
        return hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()

    count = min(max(1, round(fraction * len(prompts))), len(prompts) - 1)
    return set(sorted(prompts, key=rank)[:count])
