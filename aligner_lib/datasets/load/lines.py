"""The lines of data files as samples, with a count of the dropped and the cut samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from aligner_lib.datasets.chat_template import StopTokenError
from aligner_lib.datasets.json_lines import in_doubt, numbered_lines, parse
from aligner_lib.datasets.record_keys import RecordForm, UnreadKey, check_keys
from aligner_lib.datasets.samples import LoadReport, SFTSample
from aligner_lib.datasets.worker_processes import in_chunks, results
from aligner_lib.errors import UserError

UNBOUNDED = 1 << 30  # a limit of tokens that drops no sample


Collect = Callable[[Iterator, LoadReport], Sequence]
"""Keeps the samples of a loader. The report is complete when the last sample is made."""


def in_memory(samples: Iterator, report: LoadReport) -> Sequence:
    """Keep the samples in a list."""
    return list(samples)


def load_lines(
    files: Iterable[Path],
    make: Callable,
    form_of: Callable[[dict], RecordForm],
    group: int = 1,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence, LoadReport]:
    """Samples from groups of consecutive lines. make returns a sample, several samples, or the reason to drop the group.

    form_of: maps a record to a form. With several workers, make and form_of are pickled. Raises UnreadKey for a record with a
    key outside the form.
    """
    report, files = LoadReport(), [Path(file) for file in files]
    task = partial(_outcomes, make, form_of, group)
    samples = collect(_made(task, _chunks(files, group), report, workers), report)
    return usable(samples, report, files), report


class Group(NamedTuple):
    """The lines of a sample."""

    file: Path
    lines: list[tuple[int, str]]
    """Numbers, from 1, and texts."""
    in_doubt: bool
    """Whether a blank line makes the pairing of the lines ambiguous."""

    @property
    def place(self) -> str:
        return f"{self.file.name}:{self.lines[0][0]}"


class Outcomes(NamedTuple):
    """The samples of a chunk's groups."""

    samples: list[tuple[str, Any]]
    """For each group its place (FILE:LINE), and a sample, a list of samples, or the reason to drop the group."""
    ignored: Counter
    """The number of records with a metadata key, by key."""


CHUNK = 100
"""The number of groups in a worker's task."""


def _made(task: Callable, chunks: Iterable[list[Group]], report: LoadReport, workers: int) -> Iterator:
    """Yield the samples of `load_lines`, and add to the report."""
    for outcomes in results(task, chunks, workers):
        report.ignored += outcomes.ignored
        for place, sample in outcomes.samples:
            report.total += 1
            if isinstance(sample, str):
                report.drop(place, sample)
                continue
            if isinstance(sample, SFTSample) and sample.cut:
                report.note_cut(place, sample.cut)
            yield from sample if isinstance(sample, list) else [sample]


def _chunks(files: list[Path], size: int) -> Iterator[list[Group]]:
    """The groups of `size` lines, in chunks. A chunk has groups of a single file."""
    for file in files:
        if not file.exists():
            raise FileNotFoundError(
                f"data file {file} does not exist: `aligner data --help` explains how to make a data file"
            )
        yield from in_chunks(
            _groups(file, size), CHUNK, lambda group: sum(len(text) for _, text in group.lines)
        )


def _groups(file: Path, size: int) -> Iterator[Group]:
    lines, unsure = numbered_lines(file), set()
    if size == 1:
        lines = ((number, line) for number, line in lines if line.strip())
    else:
        unsure = in_doubt([line.strip()[:1] for _, line in numbered_lines(file)])
    index = 0
    while numbered := list(islice(lines, size)):
        yield Group(file, numbered, index in unsure)
        index += size


def _outcomes(make: Callable, form_of: Callable, size: int, groups: list[Group]) -> Outcomes:
    outcomes = Outcomes([], Counter())
    for group in groups:
        first = f"{group.file}:{group.lines[0][0]}"
        try:
            if len(group.lines) < size:
                raise ValueError("a chosen line without its rejected line")
            records = tuple(parse(line) for _, line in group.lines)
            for (number, _), record in zip(group.lines, records):
                outcomes.ignored.update(_checked_keys(record, form_of(record), f"{group.file}:{number}"))
            if group.in_doubt:
                raise ValueError(
                    "after a blank line, the pairs are ambiguous: remove the blank line, or the half pair "
                    "beside the blank line"
                )
            sample = make(*records)
        except UnreadKey:
            raise
        except StopTokenError as error:
            raise StopTokenError(f"{first}: {error}") from None
        except (ValueError, UserError) as error:
            sample = str(error)
        outcomes.samples.append((group.place, sample))
    return outcomes


def _checked_keys(record: dict, form: RecordForm, place: str) -> Counter:
    """`check_keys`, with the place in the error message."""
    try:
        return check_keys(record, form)
    except UnreadKey as error:
        raise UnreadKey(f"{place}: {error}") from None


def usable(samples: Sequence, report: LoadReport, files: list[Path]) -> Sequence:
    """Returns the samples. Raises ValueError when there are none."""
    if not len(samples):
        raise ValueError(
            f"no usable sample in {', '.join(map(str, files)) or 'an empty list of files'}: "
            + ("; ".join(report.lines()) or "the files have no line")
        )
    return samples
