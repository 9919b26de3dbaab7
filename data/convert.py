"""Convert your own data to the trainers' files: recognise the form by the columns, convert the records, and report the result
before training."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import shlex
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from data.atomic_files import atomic_text_files
from data.fields import METADATA, is_empty
from data.raw_forms import FORMS, QUESTION, RawForm, recognise, unread_columns
from data.raw_samples import RawDialogue, RawSample, RawScored
from data.readers import RawRecord, parsed, read_records
from data.report import (
    DataError,
    Reason,
    Report,
    SameMeaning,
    Skip,
    UnknownForm,
    UnreadColumns,
    Unusable,
    lengths_line,
)
from data.sources import own_files

TARGETS = ("sft", "preferences", "prompts")
SPLITS = ("train", "validation")
SHOWN = 10  # samples
HEAD = 100  # records that decide about the form
# Cures for a file without a readable record, by the fault of its first record.
CURES = {
    Reason.BAD_UTF8: "save the file as UTF-8",
    Reason.NOT_JSON: "write each record in one line, or all records as a list, [{…}, {…}], in a .json file",
    Reason.WRONG_CELLS: "put a text with the character between the cells into double quotes",
    Reason.WRONG_TYPE: 'a record must have named columns, as in {"prompt": …, "completion": …}',
}
_HELD_OUT = "(?:validation|valid|val|dev|test|testing|eval|evaluation)(?:set|data)?"
HELD_OUT = re.compile(rf"(?:^|[-_.]){_HELD_OUT}(?![a-z])")
# the split ends the name, as in math-test.jsonl and validation-00000-of-00002.parquet
ENDS_HELD_OUT = re.compile(
    rf"(?:.*[-_.])?{_HELD_OUT}(?:[-_]?\d+)?(?:-of-\d+)?(?:\.(?:jsonl?|[ct]sv|parquet|arrow)(?:\.gz)?)?"
)
TRAINED = re.compile(r"(?:^|[-_.])train(?:ing)?(?:set|data)?(?![a-z])")
FIRST = 1024  # lines of which at least one prompt is held out


@dataclass
class Conversion:
    """The results of a conversion: the recognised form, the converted and the skipped records. `str(conversion)` is the text to
    show."""

    form: RawForm
    to: str
    report: Report
    ignored: tuple[str, ...]
    paths: tuple[Path, ...] = ()
    """The files of the splits in SPLITS."""
    lengths: array = field(default_factory=lambda: array("I"))
    """The length of each sample; in a pair, the longer answer counts."""
    unit: str = "characters"
    """The unit of the lengths."""
    columns: tuple[str, ...] = ()
    """The columns of all records, by their own names."""
    unread: tuple[str, ...] = ()
    """The columns with content that the form does not read, such as metadata."""
    as_they_are: int = 0
    """The number of records that were written unchanged."""
    held_out_files: tuple[Path, ...] = ()
    """The source's files of a held-out split, if the source has files of both splits."""
    doubtful_files: tuple[Path, ...] = ()
    """Files that may be named after a held-out split or after a topic, as dev-ops.jsonl, and are not held out."""
    leaked: int = 0
    """Validation samples whose prompt also occurs in the training file."""
    lacks_validation: bool = False
    """Whether no sample was held out, although a validation file was asked for."""
    limit: float | None = None
    """The hash of a prompt below which samples are held out; None for a source with files of both splits."""
    drawn: list[dict] = field(default_factory=list)
    """Lines of the training file, drawn at random."""

    @property
    def has_own_split(self) -> bool:
        """Whether the source has files of both splits, which were kept."""
        return bool(self.held_out_files)

    def __str__(self) -> str:
        columns = ", ".join(self.form.columns)
        lines = [f"recognised: {self.form.name} (columns {columns}), as {self.to}", str(self.report)]
        if self.ignored:
            lines.insert(1, f"ignored as you asked: {', '.join(self.ignored)}")
        if self.unread:
            lines.insert(1, f"not read: {', '.join(self.unread)}")
        if self.as_they_are:
            lines.append(f"already in the job's format, and unchanged: {self.as_they_are:,} records")
        if self.held_out_files:
            lines.append(f"held out, by their names: {', '.join(map(str, self.held_out_files))}")
        if self.doubtful_files:
            lines.append(
                f"not held out, because no other file is named train: {', '.join(map(str, self.doubtful_files))}"
            )
        if self.lengths:
            lines.append(lengths_line(self.lengths, self.unit))
        if self.lacks_validation:
            why = (
                "no record of the validation files is usable"
                if self.has_own_split
                else "all samples have the same prompt, and equal prompts are kept on one side"
            )
            lines.append(
                f"no validation sample: {why}; give further prompts, or a validation file of your own"
            )
        held_out = self.report.written.get(self.paths[1], 0) if self.paths else 0
        if self.leaked:
            lines.append(
                f"leak: {self.leaked:,} of {held_out:,} validation samples have a prompt of the training file, so a "
                "good validation figure may be memory"
            )
        return "\n".join(lines)


def convert(
    raw: str | os.PathLike | Iterable[str | os.PathLike],
    out: str | os.PathLike,
    to: str,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: Iterable[str] = (),
    ignore_missing: bool = False,
    validation_fraction: float = 0.05,
    seed: int = 1234,
    strict: bool = False,
    unchanged: bool = False,
    limit: float | None = None,
) -> Conversion:
    """Write out/train.jsonl and out/validation.jsonl for the trainers, from files of any known form.

    raw: a file (.jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet, .arrow), a folder of data files (also of `datasets`), several
    files or folders, or a hub name, also with a revision (owner/name@revision). to: sft, preferences or prompts. columns: the records' names → the form's names, as
    in {"best": "chosen"}. ignore: columns that carry nothing to learn. ignore_missing: whether `ignore` may name columns that no
    record has. unchanged: whether the records are only split; also equal records are kept. limit: that of another conversion with this
    seed, so that equal prompts go to the same split in both.

    When a folder or hub data set has files of both splits, the splits are kept (`validation`, `valid`, `dev`, `test` and `eval`
    are held out). Otherwise `validation_fraction` of the prompts is held out, chosen by a hash of `seed` and prompt, so that
    equal prompts go to the same split; of several prompts, at least one is held out and one is for training, of enough prompts for
    preferences at least two each. Records are streamed: memory holds two hashes and a length of each sample.

    Raises DataError when no record is usable, when a file of the source would be replaced, and for a name in `columns` or `ignore`
    that no record has; its FormError for an unknown form, for an unread column, and for a target that the form has no samples for.
    """
    if to not in TARGETS:
        raise DataError(f"to={to!r}: the value must be {', '.join(TARGETS)}")
    if not 0 <= validation_fraction < 1:
        raise DataError(f"validation_fraction is {validation_fraction}, but must be at least 0 and below 1")
    source = own_files(raw)
    paths = tuple(Path(out) / f"{split}.jsonl" for split in SPLITS)
    if overwritten := {path.resolve() for path in paths} & {path.resolve() for path in source.paths}:
        raise DataError(
            f"{min(overwritten)} is data to convert, and would be replaced by the result: give another folder as --out"
        )
    records, ignore, columns = read_records(source.paths), tuple(ignore), dict(columns or {})
    heads, records = _first(records, source.name)
    _require_columns(columns, [key for head in heads for key in head.value], source.name)
    form = _form_of(heads, columns, ignore, source.name)
    conversion = Conversion(form, to, Report(strict=strict), ignore, paths)
    split_of = _Split(source.paths, validation_fraction, seed, 2 if to == "preferences" else 1, limit)
    conversion.held_out_files, conversion.doubtful_files = split_of.held_out_files, split_of.doubtful_files
    required = () if ignore_missing else ignore
    records = _noting_columns(records, conversion, columns, required, source.name)
    samples = _samples(_read(records, form, columns, ignore, conversion.report), conversion.report)
    _write(conversion, _lines(conversion, samples, unchanged), split_of, source.name)
    return conversion


# ---- records to samples ---------------------------------------------------------------------------------------------


def _first(
    records: Iterator[RawRecord | Skip], name: str
) -> tuple[list[RawRecord], Iterator[RawRecord | Skip]]:
    """The readable ones of the first records, and an iterator over all records."""
    before: list[RawRecord | Skip] = []
    for record in records:
        before.append(record)
        if len(before) >= HEAD and any(isinstance(record, RawRecord) for record in before):
            break
    heads = [record for record in before if isinstance(record, RawRecord)]
    if not heads:
        first = before[0] if before else None
        cure = CURES.get(first.reason if first else None, "give a file with at least one record")
        raise DataError(f"{name} holds no readable record{f'; the first: {first}' if first else ''}: {cure}")
    return heads, chain(before, records)


def _typical(heads: list[RawRecord], columns: Mapping[str, str], ignore: tuple[str, ...]) -> RawRecord:
    """The first record of the form that most of the first records have. An empty value may hide the form of a single record; a
    question alone decides only where no record has another form, because answers may be missing in most records."""
    forms: dict[str, list[RawRecord]] = {}
    questions, others = [], []
    for head in heads:
        present = _content_of(head, columns, ignore).keys()
        form = recognise(present)
        if form is None:
            continue
        (questions if form is QUESTION else others).append(head)
        if form is not QUESTION and not unread_columns(form, present):
            forms.setdefault(form.name, []).append(head)
    return max(forms.values(), key=len)[0] if forms else (others or questions or heads)[0]


def _require_columns(named: Iterable[str], present: Iterable[str], name: str) -> None:
    """Raises DataError for a name that is not among the columns of the source `name`."""
    present = dict.fromkeys(present)
    if missing := [key for key in named if key not in present]:
        raise DataError(f"{name} has no column {missing[0]!r}, only {', '.join(present)}")


def _noting_columns(
    records: Iterator[RawRecord | Skip],
    conversion: Conversion,
    columns: Mapping[str, str],
    required: Iterable[str],
    name: str,
) -> Iterator[RawRecord | Skip]:
    """The records; after the last one, the conversion has their columns. Raises DataError for a required column that is missing."""
    present: dict[str, bool] = {}  # whether any record has content in the column
    for record in records:
        if isinstance(record, RawRecord):
            for key, value in record.value.items():
                if not present.get(key):
                    present[key] = not is_empty(value)
        yield record
    conversion.columns = tuple(present)
    read = {*conversion.form.columns, *conversion.form.optional}
    conversion.unread = tuple(
        key
        for key, has_content in present.items()
        if has_content and key not in conversion.ignored and columns.get(key, key) not in read
    )
    _require_columns(required, present, name)


def _form_of(
    heads: list[RawRecord], columns: Mapping[str, str], ignore: tuple[str, ...], name: str
) -> RawForm:
    """The form of a data set, by a typical record. Raises UnknownForm, UnreadColumns, and SameMeaning."""
    head = _typical(heads, columns, ignore)
    content = _content_of(head, columns, ignore)
    form = recognise(content)
    if form is None or unread_columns(form, content):
        _refuse_capitals(head, content, columns, name)
    if form is None:
        raise _unknown_form(head, len(heads) == 1, name)
    if unread := unread_columns(form, content):
        kept_by = (
            "; SFT keeps the tools of conversations and of prompts with answers" if "tools" in unread else ""
        )
        raise UnreadColumns(
            f"{name} was recognised as {form.name}, which does not read the column {', '.join(unread)}{kept_by}",
            f"give it a meaning with --map, or leave it out on purpose with --ignore {shlex.quote(','.join(unread))}",
            unread,
        )
    return form


def _refuse_capitals(
    head: RawRecord, content: Mapping[str, Any], columns: Mapping[str, str], name: str
) -> None:
    """Raises UnknownForm if the columns differ from a form's only in capitals. content: the record's values by the form's names."""
    # pandas' index has a capital of its own
    own_names = {key if key in METADATA else key.lower(): key for key in content}
    form = recognise(own_names)
    if form and len(own_names) == len(content) and not unread_columns(form, own_names):
        meanings = dict(columns) | {own: key for key, own in own_names.items() if own != key}
        renamings = ",".join(f"{own}={key}" for own, key in meanings.items())
        fault = f"{_columns_of(head, name)} are those of {form.name}, but with capitals"
        raise UnknownForm(fault, f"name their meanings with --map {shlex.quote(renamings)}", meanings)


def _unknown_form(head: RawRecord, is_alone: bool, name: str) -> UnknownForm:
    """The error for a record without a known form. is_alone: whether the data set has no other record."""
    present = _present(head)
    lists = [
        key
        for key in present
        if isinstance(head.value[key], list) and any(isinstance(item, dict) for item in head.value[key])
    ]
    cure = "name their meanings, as in --map question=prompt,best=chosen"
    if lists and is_alone:
        cure = f"if {lists[0]!r} is the list of records, write that list alone into a file, [{{…}}, {{…}}]; else {cure}"
    examples = {form.name: " + ".join(form.columns) for form in reversed(FORMS)}
    known = "; ".join(f"{name}: {columns}" for name, columns in reversed(examples.items()))
    return UnknownForm(f"{_columns_of(head, name)} match no known form ({known})", cure, {})


def _columns_of(head: RawRecord, name: str) -> str:
    return f"{name} has the columns {', '.join(_present(head))}, which"


def _present(head: RawRecord) -> list[str]:
    """The columns with content; of a record without content, all columns."""
    return [key for key, value in head.value.items() if not is_empty(value)] or [*head.value]


def _content_of(record: RawRecord, columns: Mapping[str, str], ignore: tuple[str, ...]) -> dict[str, Any]:
    """The values of a record that are neither empty nor ignored, by the form's names. Raises SameMeaning for two values under
    one name, because one of them would be lost."""
    content: dict[str, Any] = {}
    own_names: dict[str, str] = {}
    for key, value in record.value.items():
        if key in ignore or is_empty(value):
            continue
        name = columns.get(key, key)
        if name in content:
            pair = [own_names[name], key]
            # the user has named one of the two columns, so the other one is left out
            other = next((column for column in pair if column not in columns), key)
            raise SameMeaning(
                f"{record.file}:{record.line}: the columns {pair[0]!r} and {pair[1]!r} both mean {name!r}",
                f"give one of them another meaning with --map, or leave one out with --ignore {shlex.quote(other)}",
                [other],
            )
        content[name], own_names[name] = value, key
    return content


def _samples(
    read: Iterator[tuple[RawRecord, RawSample]], report: Report
) -> Iterator[tuple[RawRecord, RawSample]]:
    """Each record's sample. Neighbouring records with scored answers to the same prompt become a single sample."""
    for _, group in groupby(
        read, key=lambda item: item[1].prompt if isinstance(item[1], RawScored) else object()
    ):
        (place, sample), *others = group
        for _, other in others:
            sample = sample._replace(answers=[*sample.answers, *other.answers])
            report.joined += 1
        yield place, sample


def _read(
    records: Iterator[RawRecord | Skip],
    form: RawForm,
    columns: Mapping[str, str],
    ignore: tuple[str, ...],
    report: Report,
) -> Iterator[tuple[RawRecord, RawSample]]:
    def parse(record: RawRecord) -> RawSample:
        value = _content_of(record, columns, ignore)
        if missing := [key for key in form.columns if key not in value]:
            raise Unusable(
                Reason.MISSING_KEY, f"{missing[0]!r}; present: {', '.join(sorted(value)) or 'none'}"
            )
        if unread := unread_columns(form, value):
            raise Unusable(Reason.UNREAD_KEY, f"{unread[0]!r}")
        return form.read(value)

    return parsed(records, parse, report)


# ---- samples to lines -----------------------------------------------------------------------------------------------


def _content(sample: RawSample, to: str) -> dict[str, Any]:
    """The record for the trainers. Raises Unusable, and WrongTarget for a form without data for the target."""
    if to == "preferences":
        return sample.compared()
    tools = list(sample.tools) if isinstance(sample, RawDialogue) else []
    if to == "sft":
        return {"messages": sample.answered()} | ({"tools": tools} if tools else {})
    context = sample.context()
    if isinstance(context, str):
        return {"text": context}
    if tools or any("tool_calls" in turn or turn["role"] == "tool" for turn in context):
        raise Unusable(Reason.UNREAD_KEY, "tools or their calls, which prompts cannot hold: use --to sft")
    return {"prompt": context}


def _characters(content: dict[str, Any]) -> int:
    """The length of a sample in characters; in a pair, the longer answer counts."""
    turns = content.get("messages") or content.get("prompt") or content["text"]
    if isinstance(turns, str):
        turns = [{"content": turns}]
    answers = [len(content[key]) for key in ("chosen", "rejected", "response") if key in content]
    calls = sum(len(json.dumps(turn["tool_calls"])) for turn in turns if "tool_calls" in turn)
    return sum(len(turn["content"]) for turn in turns) + calls + max(answers, default=0)


class _Line(NamedTuple):
    """A sample as a line of a file, with what decides about its split."""

    file: str
    """The source's file."""
    prompt: str
    content: dict[str, Any]
    text: str
    """The line, without its end."""


class _Split:
    """Chooses the split of each sample."""

    def __init__(
        self, paths: tuple[Path, ...], fraction: float, seed: int, least: int, limit: float | None = None
    ):
        self.held_out_files, self.doubtful_files = _held_out_files(paths)
        """Empty for files of a single split."""
        self._held_out = set(map(str, self.held_out_files))
        # with another source's limit, either side may be empty
        self.is_wanted = bool(self.held_out_files) or (fraction > 0 and limit is None)
        self.limit, self._seed, self._least = fraction * 2**64 if limit is None else limit, seed, least

    def sides(self, lines: Iterator[_Line]) -> Iterator[tuple[_Line, int]]:
        """The lines, each with 0 for training or 1 for validation. Holds FIRST lines in memory."""
        first = list(islice(lines, FIRST))
        if self.is_wanted and not self._held_out and first:
            self._keep_both_sides({self._place(line) for line in first})
        return ((line, self._side(line)) for line in chain(first, lines))

    def _side(self, line: _Line) -> int:
        return int(line.file in self._held_out if self._held_out else self._place(line) < self.limit)

    def _keep_both_sides(self, places: set[int]) -> None:
        """Move the limit, so that at least `least` of the prompts at these places are held out and as many are for training; of
        fewer than twice as many prompts, at least one. A small share of few prompts may be none, and a large one all. A single
        prompt is for training."""
        ordered = sorted(places)
        least = self._least if len(ordered) >= 2 * self._least else 1
        self.limit = min(max(self.limit, ordered[least - 1] + 1), ordered[-least])

    def _place(self, line: _Line) -> int:
        return _hash(f"{self._seed}\n{line.prompt}")


def _held_out_files(paths: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files that are named after a held-out split, else the files in a folder named so; and the files of which the name does
    not decide. `devices.csv` is named after none.

    Beside a file named train, the name of a held-out split may have further words (`test_prefs`). Without a file named train,
    `dev-ops` may be a topic.
    """
    doubtful: tuple[Path, ...] = ()
    for part in ("name", "parent.name"):
        names = {path: attrgetter(part)(path).lower() for path in paths}
        named = tuple(path for path in paths if HELD_OUT.search(names[path]))
        if not 0 < len(named) < len(paths):
            continue
        has_train = any(TRAINED.search(names[path]) for path in paths if path not in named)
        held_out = tuple(path for path in named if has_train or ENDS_HELD_OUT.fullmatch(names[path]))
        if held_out:
            return held_out, tuple(path for path in named if path not in held_out)
        doubtful = doubtful or named
    return (), doubtful


def _lines(
    conversion: Conversion,
    samples: Iterator[tuple[RawRecord, RawSample]],
    unchanged: bool,
) -> Iterator[_Line]:
    """The samples as lines, each converted line once. What is left out is counted in the report."""
    seen: set[int] = set()
    for record, sample in samples:
        try:
            content, prompt = _content(sample, conversion.to), json.dumps(sample.context())
            text = json.dumps(content)
            if (identity := _hash(text)) in seen:
                if not unchanged:
                    raise Unusable(Reason.DUPLICATE, text[:60])
                conversion.report.notes[Reason.DUPLICATE] += 1
        except Unusable as error:
            conversion.report.skip(Skip(record.file, record.line, error.reason, error.detail))
            continue
        seen.add(identity)
        conversion.as_they_are += unchanged
        yield _Line(record.file, prompt, content, json.dumps(record.value) if unchanged else text)


def _write(conversion: Conversion, lines: Iterator[_Line], split_of: _Split, name: str) -> None:
    """Write the lines to the files. name: the source's name for errors. An error leaves no file behind."""
    report, paths = conversion.report, conversion.paths
    report.written = dict.fromkeys(paths, 0)
    trained: set[int] = set()  # hashes of prompts
    held_out = array("Q")
    drawn: list[tuple[int, str]] = []  # the samples of the lowest hashes
    with atomic_text_files(*paths) as streams:
        for line, side in split_of.sides(lines):
            streams[side].write(line.text + "\n")
            report.kept += 1
            report.written[paths[side]] += 1
            conversion.lengths.append(_characters(line.content))
            if side:
                held_out.append(_hash(line.prompt))
            else:
                trained.add(_hash(line.prompt))
                draw = (-_hash(line.text), line.text)
                (heapq.heappush if len(drawn) < SHOWN else heapq.heappushpop)(drawn, draw)
        report.require_usable(name)
        if split_of.held_out_files and not report.written[paths[0]]:
            raise DataError(
                f"{name} has no training sample: no record of the training files is usable, only {report.kept:,} of the held-out "
                f"files; repair the training files\n{report}"
            )
    conversion.leaked = sum(prompt in trained for prompt in held_out)
    conversion.lacks_validation = split_of.is_wanted and not held_out
    conversion.limit = None if split_of.held_out_files else split_of.limit
    conversion.drawn = [json.loads(text) for _, text in sorted(drawn, reverse=True)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
