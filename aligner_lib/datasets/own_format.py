"""Whether the trainers read a user's file unchanged, or `data.convert` has to convert the file before."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from pathlib import Path

from aligner_lib.datasets.json_lines import numbered_lines, parse
from aligner_lib.datasets.record_keys import Samples, is_faulty, need_conversion, needs_conversion, raw_forms
from data.convert import HEAD
from data.readers import first_character

# The samples that a target of `data.convert` is for; `labels` also allows pairs.
SAMPLES: dict[str, Samples] = {"sft": "sft", "preferences": "labels", "prompts": "prompts"}


def is_read_as_it_is(file: Path, to: str, names: Collection[str] = (), *, is_split: bool = False) -> bool:
    """Whether a job reads the records of a file unchanged.

    to: the target of `data.convert`; names: the columns that the user names; is_split: whether the job holds out a part of the
    file, which leaves the records unchanged only if no record needs a conversion.
    """
    if to not in SAMPLES or not may_be_own(file):
        return False
    samples = SAMPLES[to]
    return are_own(first_records(file), samples, names) and (
        not is_split or all_are_own(file, samples, names)
    )


def may_be_own(source: Path) -> bool:
    """Whether a source may be JSON Lines in the trainers' format."""
    if not source.is_file():
        return False
    first = first_character(source)
    return first == "{" or (first != "[" and source.suffix.lower() in (".jsonl", ".json"))


def first_records(source: Path) -> list[dict]:
    """The first records of a JSON Lines file. Several, because a record may lack the value of a column."""
    heads = []
    for _, line in islice(numbered_lines(source), HEAD):
        with suppress(ValueError):  # the loaders say what is wrong with the line
            heads.append(parse(line))
    return heads


def are_own(heads: list[dict], samples: Samples, names: Collection[str]) -> bool:
    """Whether a JSON Lines file with these first records is in the trainers' format. names: the columns that the user names."""
    if not heads:  # the loaders say what is wrong with a file without a record
        return True
    return not set().union(*heads).intersection(names) and not need_conversion(heads, samples)


def all_are_own(source: Path, samples: Samples, names: Collection[str]) -> bool:
    """Whether no record of a JSON Lines file needs a conversion, or has a column that the user names. The conversion leaves out
    and reports faulty records."""
    forms = raw_forms(first_records(source), samples)
    for _, line in numbered_lines(source):
        with suppress(ValueError):  # the conversion reports a line without a record
            record = parse(line)
            if record.keys() & set(names):
                return False
            if needs_conversion(record, samples) and not is_faulty(record, samples, forms):
                return False
    return True
