"""SQuAD's questions about paragraphs as the input/output files of supervised fine-tuning."""

import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from data.atomic_files import atomic_text_files
from data.fields import ignored_keys, require_length, text_field
from data.readers import RawRecord, parsed, read_records
from data.report import DataError, Reason, Report, Unusable
from data.sources import resolve

SPLITS = ("train", "validation")
KEYS = frozenset({"context", "question", "answers"})
# `answer_start` is the position of the text in the paragraph; the key is accepted and not used
KEYS_OF_ANSWERS = frozenset({"text", "answer_start"})


def format_squad(
    raw: str | os.PathLike | Iterable[str | os.PathLike],
    out: str | os.PathLike,
    split: str,
    *,
    max_chars: int | None = None,
    strict: bool = False,
) -> Report:
    """Write out/{split}.jsonl: the paragraph, an empty line and the question as input, the first answer as output.

    raw: file(s) with rows in the hub's format (context, question, answers), a hub data set name, or "squad". SQuAD's own splits
    share no article. max_chars: longest input plus output, in characters. A question without an answer, as in SQuAD 2, is left
    out, and so is a record with a key that is neither read nor metadata (`data.fields`). Raises DataError when no record is
    usable, or at the first bad record when strict.
    """
    if split not in SPLITS:
        raise DataError(f"split is {split!r}; SQuAD has {' and '.join(SPLITS)}")
    source = resolve(raw, "squad", split=split)
    report = Report(strict=strict)
    path = Path(out) / f"{split}.jsonl"
    with atomic_text_files(path) as (stream,):
        parse = partial(_line, max_chars=max_chars)
        for _, (line, ignored) in parsed(read_records(source.paths), parse, report):
            stream.write(line)
            report.kept += 1
            report.notes.update(ignored)
        report.require_usable(source.name)
    report.written = {path: report.kept}
    return report


def _line(record: RawRecord, max_chars: int | None) -> tuple[str, list[str]]:
    """The line of output, and the notes on metadata that the output lacks."""
    context, question = (text_field(record.value, key).strip() for key in ("context", "question"))
    output = _first_answer(record.value)
    input_text = f"{context}\n\n{question}"
    require_length(len(input_text) + len(output), max_chars)
    ignored = ignored_keys(record.value, KEYS) + ignored_keys(record.value["answers"], KEYS_OF_ANSWERS)
    return json.dumps({"input": input_text, "output": output}) + "\n", ignored


def _first_answer(record: dict[str, object]) -> str:
    """The first annotator's answer."""
    if "answers" not in record:
        raise Unusable(Reason.MISSING_KEY, f"'answers'; present: {', '.join(sorted(record))}")
    answers = record["answers"]
    texts = answers.get("text") if isinstance(answers, dict) else None
    if not isinstance(texts, list):
        raise Unusable(Reason.WRONG_TYPE, "'answers' has no list 'text'")
    if not texts:
        raise Unusable(Reason.EMPTY_TEXT, "the question has no answer")
    return text_field({"answer": texts[0]}, "answer")
