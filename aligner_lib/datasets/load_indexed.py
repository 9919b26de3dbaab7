"""Samples from Megatron's token files (model.data.data_impl=mmap), equal to the samples of `aligner_lib.datasets.load`.

A document corresponds to a line of a text file. The first document of each pair is the chosen document. The loaders accept
documents with or without a stop token at the end, which `--append-eod` writes, and with or without a BOS token, which NeMo's
tool leaves out. The files do not store where a response begins. As in a text, a response begins after the last `Assistant:` (or
after the generation prompt of the tokenizer's template).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from aligner_lib.datasets.chat_template import (
    OWN,
    PLAIN,
    answer_end,
    answer_mark,
    stop_token_within,
    writes_date,
)
from aligner_lib.datasets.indexed_dataset import IndexedDataset, prefix_of
from aligner_lib.datasets.load.labelled import beside_others, labelled_sample, labelled_sides
from aligner_lib.datasets.load.lines import Collect, in_memory, usable
from aligner_lib.datasets.load.pairs import pair_problem
from aligner_lib.datasets.load.prompts import prompt_sample
from aligner_lib.datasets.samples import (
    LabelledSample,
    LoadReport,
    PairSample,
    PreferenceSample,
    PromptSample,
)
from aligner_lib.datasets.token_files import about_file
from aligner_lib.datasets.tokenizer import DATE, Tokenizer
from aligner_lib.errors import UserError

UNUSABLE = "an empty document: its record could not be used when the files were written"
ALIKE = 8  # the number of documents whose last tokens are compared


def load_pairs(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int, collect: Collect = in_memory
) -> tuple[Sequence[PairSample], LoadReport]:
    """As load.load_pairs. files: prefixes of .bin and .idx. Raises UserError for unusable files."""

    end = answer_end(tokenizer)

    def make(prompt: list[int], *responses: list[int]) -> PairSample | str:
        pair = PairSample(*(prompt + response for response in responses))
        return pair_problem(pair, max_length) or pair

    def make_whole(*rows: list[int]) -> PairSample | str:
        if reason := next(filter(None, (_stop_in_response(tokenizer, row) for row in rows)), None):
            return reason
        return make([], *(row + [end] for row in rows))

    # a plain text need not say where its response begins, and some templates write nothing there
    has_mark = tokenizer.template == OWN and answer_mark(tokenizer)
    make_rows = _with_prompt(tokenizer, make) if has_mark else make_whole
    return _load(files, tokenizer, make_rows, group=2, collect=collect)


def load_preferences(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int, collect: Collect = in_memory
) -> tuple[Sequence[PreferenceSample], LoadReport]:
    """As load.load_preferences."""

    def make(prompt: list[int], *responses: list[int]) -> PreferenceSample | str:
        chosen, rejected = (prompt + response for response in responses)
        pair = PreferenceSample(chosen, rejected, len(prompt), len(prompt))
        return pair_problem(pair, max_length) or pair

    return _load(files, tokenizer, _with_prompt(tokenizer, make), group=2, collect=collect)


def load_labelled(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int, collect: Collect = in_memory
) -> tuple[Sequence[LabelledSample], LoadReport]:
    """As load.load_labelled, for pairs. The token ids of an unrelated response are joined to the prompt's token ids."""

    def make(prompt: list[int], chosen: list[int], rejected: list[int]) -> tuple | str:
        pair = PairSample(prompt + chosen, prompt + rejected)
        return pair_problem(pair, max_length) or (prompt, chosen, rejected)

    files = list(map(Path, files))
    pairs, report = _load(files, tokenizer, _with_prompt(tokenizer, make), group=2)
    join = lambda prompt, response: (prompt + response, len(prompt))  # noqa: E731
    contrasts = beside_others(labelled_sides(pairs), files)
    return collect((labelled_sample(join, max_length, contrast) for contrast in contrasts), report), report


def load_prompts(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[PromptSample], LoadReport]:
    """As load.load_prompts."""

    def make(row: list[int]) -> PromptSample | str:
        return prompt_sample(row, tokenizer.decode(row, special_tokens=tokenizer.template == OWN), max_length)

    return _load(files, tokenizer, make)


def response_start(tokenizer: Tokenizer, ids: list[int], mark: str) -> int | None:
    """The index of the first token after the last `mark` in the text of the ids; None for a text without the mark.

    As in `Tokenizer.encode_parts`, a token across the border belongs to the response.
    """

    def text(count: int) -> str:
        return tokenizer.decode(ids[:count], special_tokens=True)

    before, separator, _ = text(len(ids)).rpartition(mark)
    if not separator:
        return None
    border = len(before) + len(mark)
    return bisect_right(range(len(ids) + 1), border, key=lambda count: len(text(count))) - 1


def _stop_in_response(tokenizer: Tokenizer, row: list[int]) -> str | None:
    """The reason to drop a plain text whose response, after the last `Assistant:`, contains a stop token."""
    # with the tokenizer's own template, the prompt has stop tokens, and `aligner data mmap` has checked the response
    if tokenizer.template == OWN or not stop_token_within(tokenizer, row[len(tokenizer.bos_ids) :]):
        return None
    start = response_start(tokenizer, row, answer_mark(tokenizer))
    return None if start is None else stop_token_within(tokenizer, row[start:])


def _with_prompt(tokenizer: Tokenizer, make: Callable) -> Callable:
    """A function of a pair's two rows, which calls make(prompt, chosen, rejected); the responses get their stop tokens. Raises
    UserError for a template that writes nothing before an answer."""
    mark, end = answer_mark(tokenizer), answer_end(tokenizer)
    if not mark:
        raise UserError(
            f"{tokenizer.folder}: the chat template writes nothing before an answer, so the start of a response can't be "
            "found in token files: give model.data.data_impl=jsonl"
        )

    def split(*rows: list[int]):
        starts = [response_start(tokenizer, row, mark) for row in rows]
        if any(
            start is None or not tokenizer.decode(row[start:], special_tokens=True).strip()
            for start, row in zip(starts, rows)
        ):
            return f"no answer behind a last {mark!r}"
        (prompt, chosen), (other, rejected) = ((row[:at], row[at:]) for at, row in zip(starts, rows))
        if prompt != other:
            return "chosen and rejected have different prompts"
        if reason := stop_token_within(tokenizer, chosen) or stop_token_within(tokenizer, rejected):
            return reason
        return make(prompt, chosen + [end], rejected + [end])

    return split


def _load(
    files: Iterable[Path],
    tokenizer: Tokenizer,
    make: Callable,
    group: int = 1,
    collect: Collect = in_memory,
) -> tuple[Sequence, LoadReport]:
    """Samples from groups of consecutive documents. make returns a sample, or the reason to drop the group."""
    report, prefixes = LoadReport(), [prefix_of(Path(file)) for file in files]
    samples = collect(_made(prefixes, tokenizer, make, group, report), report)
    return usable(samples, report, prefixes), report


def _made(
    prefixes: list[Path], tokenizer: Tokenizer, make: Callable, group: int, report: LoadReport
) -> Iterator:
    """The samples of `_load`, one by one. Adds to the report."""
    for prefix in prefixes:
        documents = IndexedDataset(prefix)
        _check_tokenizer(documents, tokenizer)
        if len(documents) % group:
            raise UserError(
                f"{prefix} has {len(documents):,} documents: chosen and rejected documents alternate, so their "
                "number must be even: the file contains prompts, or its end is missing"
            )
        for i in range(0, len(documents), group):
            report.total += 1
            rows = [_bare(tokenizer, documents[j]) for j in range(i, i + group)]
            sample = make(*rows) if all(rows) else UNUSABLE
            if isinstance(sample, str):
                report.drop(f"{prefix.name}:{i + 1}", sample)
            else:
                yield sample


def _bare(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """A document with the tokenizer's BOS token, if there is one, and without its stop token."""
    ids = ids[:-1] if ids and ids[-1] in tokenizer.stop_ids else ids
    # the template has already written its BOS token
    bos = [] if tokenizer.template == OWN else tokenizer.bos_ids
    return ids if not ids or ids[: len(bos)] == bos else bos + ids


def _check_tokenizer(documents: IndexedDataset, tokenizer: Tokenizer) -> None:
    """Raises UserError if the files are evidently from another tokenizer or another template."""
    again = f"write it again, with `aligner data mmap --tokenizer {tokenizer.folder}`"
    if documents.largest_id() > tokenizer.largest_id:
        raise UserError(
            f"{documents.bin_path} has token {documents.largest_id():,}, but the vocabulary of {tokenizer.folder} ends at "
            f"{tokenizer.largest_id:,}: another tokenizer wrote the file; {again}"
        )
    about = _about(documents.prefix)
    if about is None:
        lasts = {ids[-1] for _, ids in zip(range(ALIKE), documents) if ids}
        if len(documents) >= ALIKE and len(lasts) == 1 and not lasts <= {*tokenizer.stop_ids}:
            raise UserError(
                f"{documents.bin_path}: documents end with token {min(lasts)}, but the stop token of {tokenizer.folder} is "
                f"{tokenizer.eos_id}: another tokenizer wrote the file; {again}"
            )
        return
    if about.get("tokenizer") != tokenizer.hash:
        raise UserError(
            f"{documents.bin_path} was written with another tokenizer than the tokenizer of {tokenizer.folder}: {again}"
        )
    if about.get("chat_template") != (tokenizer.template or PLAIN):
        raise UserError(
            f"{documents.bin_path} was written with --chat-template {about.get('chat_template')}, but the run has "
            f"model.data.chat_template={tokenizer.template or PLAIN}: change either setting"
        )
    if tokenizer.template == OWN and writes_date(tokenizer) and tokenizer.date != DATE:
        raise UserError(
            f"{documents.bin_path} has the date {DATE} in its prompts, but the run has "
            f"model.data.chat_template_date={tokenizer.date}: leave the setting out, or give "
            "model.data.data_impl=jsonl"
        )


def _about(prefix: Path) -> dict | None:
    """The record written by `aligner data mmap` beside token files; None for files of another tool."""
    try:
        about = json.loads(about_file(prefix).read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise UserError(
            f"{about_file(prefix)} is damaged: remove the file, and the token files are treated as files of another "
            "tool"
        )
    return about
