"""`aligner data mmap`: writes the texts of a JSON Lines file as Megatron's token files.

PREFIX_KEY_document.bin and .idx equal the files of Megatron's own tool for the same ids. A .json file beside them records the
tokenizer and the template. Any number of workers gives the same files byte for byte, even after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aligner_lib.datasets.chat_template import (
    ANSWER,
    OWN,
    PLAIN,
    as_written,
    encode_prompt,
    use_template,
    with_response,
)
from aligner_lib.datasets.indexed_dataset import DTYPES, best_dtype
from aligner_lib.datasets.json_lines import parse, text_of
from aligner_lib.datasets.samples import LoadReport
from aligner_lib.datasets.token_files import Encoded, TokenFiles, Unfinished
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.worker_processes import results
from aligner_lib.errors import UserError

Line = tuple[int, str]  # number, from 1, and text


class TokenizationRecipe(NamedTuple):
    """The settings for turning a line into token ids."""

    folder: Path
    """The tokenizer's folder."""
    template: str
    """chat_template.PLAIN or chat_template.OWN."""
    key: str
    append_eod: bool


def prefix_written(output_prefix: Path, key: str) -> Path:
    """The prefix under which Megatron's tool writes its files."""
    return output_prefix.with_name(f"{output_prefix.name}_{key}_document")


def tokenize_file(
    source: Path,
    output_prefix: Path,
    tokenizer: Tokenizer,
    *,
    key: str = "text",
    append_eod: bool = False,
    workers: int = 1,
    chunk_size: int = 100,
) -> TokenFiles:
    """Write the token files of a JSON Lines file: one document for each line, with the text under `key` as token ids.

    A text that ends with a prompt is tokenised as a prompt, a text that ends with an answer like a text of a pair
    (`chat_template`). append_eod: write the stop token after each text. workers: the number of processes; chunk_size: the lines
    that a worker gets at a time. A line without a text becomes an empty document and is reported, so that pairs keep their
    partners.

    Raises FileNotFoundError for a missing source, UserError when the files exist already with another source or other options,
    for an empty line within the source, and for a source without any text.
    """
    if not source.exists():
        raise FileNotFoundError(
            f"data file {source} does not exist: `aligner data --help` explains how to make a data file"
        )
    recipe = TokenizationRecipe(tokenizer.folder, tokenizer.template or PLAIN, key, append_eod)
    dtype = best_dtype(tokenizer.largest_id + 1)
    about = {
        "source": _hash(source),
        "tokenizer": tokenizer.hash,
        "chat_template": recipe.template,
        "json_key": key,
        "append_eod": append_eod,
    }
    made = Unfinished(prefix_written(output_prefix, key), about, dtype)
    made.prefix.parent.mkdir(parents=True, exist_ok=True)
    with made.locked():
        if made.is_complete():
            return made.summary(went_on=made.documents, report=LoadReport(made.documents))
        report = LoadReport()
        with made.opened() as lengths:
            went_on = len(lengths)
            lines = _lines(source)
            for (number, line), length in zip(islice(lines, went_on), lengths.tolist()):
                report.total += 1
                if not length:
                    report.drop(f"{source.name}:{number}", _problem(line, key))
            for encoded in _encoded(_chunks(lines, chunk_size), recipe, dtype, workers):
                made.append(encoded)
                report.total += len(encoded.lengths)
                for number, problem in encoded.problems:
                    report.drop(f"{source.name}:{number}", problem)
        if report.total == report.dropped.total():
            made.discard()
            raise UserError(_no_text(source, key, report))
        made.finish()
    return made.summary(went_on, report)


# ---- lines to token ids ---------------------------------------------------------------------------------------------


def _lines(source: Path) -> Iterator[Line]:
    """The lines of the file, without empty lines at the end. Raises UserError for an empty line before another line."""
    empty = 0
    with open(source, encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                empty = empty or number
            elif empty:
                raise UserError(
                    f"{source}:{empty} is empty, so the pairs after the line are ambiguous: remove the line"
                )
            else:
                yield number, line


def _chunks(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    while chunk := list(islice(lines, size)):
        yield chunk


def _encoded(
    chunks: Iterable[list[Line]], recipe: TokenizationRecipe, dtype: int, workers: int
) -> Iterator[Encoded]:
    """The encoded chunks in their order."""
    try:
        yield from results(partial(_encode, recipe=recipe, dtype=dtype), chunks, workers)
    except BrokenProcessPool as error:
        raise UserError(
            f"a worker of {workers} was killed, perhaps for lack of memory: run the same command again with fewer "
            "--workers; the finished part is kept"
        ) from error


def _encode(lines: list[Line], recipe: TokenizationRecipe, dtype: int) -> Encoded:
    tokenizer = _tokenizer(recipe.folder, recipe.template)
    documents, problems = [], []
    for number, line in lines:
        try:
            ids = _document(tokenizer, _usable_text(line, recipe.key))
            documents.append(
                [*ids, tokenizer.eos_id] if recipe.append_eod and ids[-1] not in tokenizer.stop_ids else ids
            )
        except (ValueError, UserError) as error:
            documents.append([])
            problems.append((number, str(error)))
    ids = np.array([token_id for ids in documents for token_id in ids], dtype=DTYPES[dtype])
    return Encoded(ids.tobytes(), list(map(len, documents)), problems)


def _document(tokenizer: Tokenizer, text: str) -> list[int]:
    if tokenizer.template == OWN and as_written(tokenizer, text)[-1]["role"] == "assistant":
        before, mark, response = text.rpartition(ANSWER)
        return with_response(tokenizer, before + mark, response)[0]
    return encode_prompt(tokenizer, text)


def _usable_text(line: str, key: str) -> str:
    text = text_of(parse(line), key)
    if not text.strip():
        raise ValueError("empty text")
    return text


def _problem(line: str, key: str) -> str:
    """The reason for the empty document that an earlier call made of this line."""
    try:
        _usable_text(line, key)
    except ValueError as error:
        return str(error)
    return "the chat template refuses the text"


def _no_text(source: Path, key: str, report: LoadReport) -> str:
    faults = "; ".join(report.lines()) or "the file is empty"
    return (
        f"{source} has no text under {key!r}, so no token files were written ({faults}): name the key with --json-keys, or give "
        'lines {"text": …}, as `aligner data hh` writes them; the jobs read pairs (prompt, chosen, rejected) and prompts as they are'
    )


@cache
def _tokenizer(folder: Path, template: str) -> Tokenizer:
    return use_template(Tokenizer(folder), template)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
