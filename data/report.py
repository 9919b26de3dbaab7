"""A report of the records that were read, kept and left out, with reasons. No record is dropped without a note."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

EXAMPLES_PER_REASON = 3


class Reason(StrEnum):
    """The reason why a record was left out; the value is the wording in reports."""

    NOT_JSON = "not JSON"
    BAD_UTF8 = "bad UTF-8"
    MISSING_KEY = "missing key"
    UNREAD_KEY = "unread key"
    WRONG_TYPE = "wrong type"
    WRONG_CELLS = "wrong number of cells"
    EMPTY_TEXT = "empty text"
    OVERLONG = "overlong sample"
    BAD_TURN = "turn does not split in two"
    DIFFERENT_PROMPTS = "different prompts"
    UNKNOWN_ROLE = "unknown role"
    NO_ANSWER = "the last turn is not the assistant's"
    NOT_LEARNT = "every answer has the weight 0"
    TEMPLATED = "a chat template has written the prompt"
    PROMPT_ANSWERED = "the prompt ends with the assistant's turn"
    EQUAL_ANSWERS = "chosen and rejected are equal"
    EQUAL_SCORES = "no two answers with different scores"
    UNDESIRABLE = "an undesirable answer"
    DUPLICATE = "the same sample again"


class DataError(ValueError):
    """The raw data cannot be used as it is. The message names the place and a cure."""


class FormError(DataError):
    """A data set whose columns or samples do not suit the purpose. The message is `fault: cure`.

    fault: the fault and the file. cure: the cure on the command line of `aligner data`; a job's settings have cures of their own.
    """

    def __init__(self, fault: str, cure: str):
        super().__init__(f"{fault}: {cure}")
        self.fault = fault


class UnknownForm(FormError):
    """The columns of a data set are no known form. meanings: of the columns whose names differ from a form's only in capitals."""

    def __init__(self, fault: str, cure: str, meanings: Mapping[str, str]):
        super().__init__(fault, cure)
        self.meanings = meanings


class UnreadColumns(FormError):
    """The form of a data set does not read some columns."""

    def __init__(self, fault: str, cure: str, columns: list[str]):
        super().__init__(fault, cure)
        self.columns = columns


class SameMeaning(FormError):
    """Two columns of a record have the same meaning."""

    def __init__(self, fault: str, cure: str, columns: list[str]):
        super().__init__(fault, cure)
        self.columns = columns


class WrongTarget(FormError):
    """The records of a data set have no samples for the target, because they lack rejected answers, for example."""


class Unusable(Exception):
    """A record cannot be used. Parsers raise Unusable; the reading loop turns the exception into a `Skip`."""

    def __init__(self, reason: Reason, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Skip:
    """A record left out of the output."""

    file: str
    line: int  # from 1; the row in a parquet file
    reason: Reason
    detail: str  # the exact problem, in a few words

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason} ({self.detail})"


def lengths_line(lengths: Iterable[int], unit: str) -> str:
    """The distribution of the samples' lengths in a line."""
    ordered = sorted(lengths)
    shares = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "longest": 1.0}
    texts = (f"{name} {ordered[int(share * (len(ordered) - 1))]:,}" for name, share in shares.items())
    return f"{unit} of a sample: {', '.join(texts)}"


@dataclass
class Report:
    """The counts of a formatting run. `str(report)` is the text to show."""

    strict: bool = False
    kept: int = 0
    joined: int = 0  # records whose answers became part of the sample of the record before
    skipped: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, list[Skip]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)  # about records that were kept
    written: dict[Path, int] = field(default_factory=dict)  # output file → number of lines

    @property
    def read(self) -> int:
        """The number of records read."""
        return self.kept + self.joined + self.skipped.total()

    def skip(self, skip: Skip) -> None:
        """Count a record that was left out. Raises DataError at once when strict."""
        if self.strict:
            raise DataError(f"{skip}: correct the line, or run without strict to leave the line out")
        self.skipped[skip.reason] += 1
        examples = self.examples.setdefault(skip.reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            examples.append(skip)

    def require_usable(self, origin: str) -> None:
        """Raises DataError when no record was kept, with the reasons and the first example."""
        if self.kept:
            return
        if not self.read:
            raise DataError(f"{origin} holds no records: give a file with at least one record")
        counts = ", ".join(f"{reason} {count:,}" for reason, count in self.skipped.most_common())
        first = self.examples[self.skipped.most_common(1)[0][0]][0]
        raise DataError(f"{origin} holds no usable record ({counts}); the first: {first}")

    def __str__(self) -> str:
        lines = [f"read {self.read:,} records, kept {self.kept:,}, skipped {self.skipped.total():,}"]
        if self.joined:
            lines.append(f"  answers joined to the record before, which has the same prompt: {self.joined:,}")
        for reason, count in self.skipped.most_common():
            lines.append(f"  {reason}: {count:,}")
            lines += [f"    {skip.file}:{skip.line} ({skip.detail})" for skip in self.examples[reason]]
            if count > len(self.examples[reason]):
                lines.append(f"    and {count - len(self.examples[reason]):,} more")
        lines += [f"  kept, but note: {note}: {count:,}" for note, count in self.notes.items()]
        lines += [f"wrote {path} ({count:,} lines)" for path, count in self.written.items()]
        return "\n".join(lines)
