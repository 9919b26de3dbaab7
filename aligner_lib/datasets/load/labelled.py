"""Responses with labels for KTO, beside unrelated responses to the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from aligner_lib.datasets.chat_template import ANSWER, Conversation, with_response
from aligner_lib.datasets.json_lines import first_record
from aligner_lib.datasets.load.lines import CHUNK, Collect, in_memory, load_lines
from aligner_lib.datasets.load.pairs import load_pair_lines, prompt_and_responses
from aligner_lib.datasets.load.turns import after_prompt, response_text, text_or_turns
from aligner_lib.datasets.record_keys import labelled_form
from aligner_lib.datasets.samples import LabelledSample, LoadReport
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.worker_processes import in_chunks, results


def load_labelled(
    files: Iterable[Path],
    tokenizer: Tokenizer,
    max_length: int,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence[LabelledSample], LoadReport]:
    """Responses with labels, and a report of the dropped samples. max_length: tokens; workers: as for `load_sft`.

    {"prompt", "response", "label"} lines become `{prompt} {response}` and a stop token, if the prompt is a text that ends in
    `Assistant:`; its paragraphs are turns for the tokenizer's own template. A text in a template's marks stays as it is. Any
    other text is one user's turn, also when it quotes a conversation, and the template writes turns, as for pairs. The label is
    true for a desirable response. Pairs, in the form of `load_preferences`, are split in two: the chosen response is desirable,
    the rejected response is not. Each sample also holds the same prompt with an unrelated response, cut to max_length. The
    unrelated response is the next response in the file to another prompt (for pairs, the next chosen or the next rejected
    response).

    Raises FileNotFoundError for a missing file, ValueError when no sample is usable, or when all samples have the same prompt.
    """

    files = [Path(file) for file in files]
    if "label" in first_record(files):
        texts, report = load_lines(
            files, partial(_labelled, tokenizer, max_length), labelled_form, workers=workers
        )
        sides = [texts]
    else:
        pairs, report = load_pair_lines(files, partial(_two_labelled, tokenizer, max_length), workers=workers)
        sides = labelled_sides(pairs)
    contrasts = in_chunks(
        beside_others(sides, files), CHUNK, lambda contrast: sum(len(str(text)) for text in contrast)
    )
    task = partial(_labelled_samples, partial(with_response, tokenizer), max_length)
    return collect(chain.from_iterable(results(task, contrasts, workers)), report), report


def _labelled(tokenizer: Tokenizer, max_length: int, record: dict) -> tuple[Conversation, str, bool] | str:
    text = record.get("prompt")
    is_plain_prompt = isinstance(text, str) and text.rstrip().endswith(ANSWER)
    prompt = text_or_turns(record, "prompt", as_turns=not is_plain_prompt)
    response, label = after_prompt(prompt, response_text(record, "response")), record.get("label")
    if not isinstance(label, bool):
        raise ValueError(f"'label' is {label!r}, but must be true or false")
    return _too_long(tokenizer, max_length, prompt, response) or (prompt, response, label)


def _two_labelled(
    tokenizer: Tokenizer, max_length: int, *records: dict
) -> tuple[Conversation, str, str] | str:
    texts = prompt_and_responses(records)
    if isinstance(texts, str):
        return texts
    prompt, *responses = texts
    if responses[0] == responses[1]:
        return "chosen and rejected are equal"
    problems = (_too_long(tokenizer, max_length, prompt, response) for response in responses)
    return next(filter(None, problems), texts)


def _too_long(tokenizer: Tokenizer, max_length: int, prompt: Conversation, response: str) -> str | None:
    too_many = len(with_response(tokenizer, prompt, response)[0]) > max_length
    return f"longer than {max_length} tokens (encoder_seq_length)" if too_many else None


Labelled = tuple[Any, Any, bool]  # prompt and response, as texts or as token ids, and the label


def labelled_sides(pairs: list[tuple[Any, Any, Any]]) -> list[list[Labelled]]:
    """Pairs, split into the chosen responses and the rejected responses."""
    chosen = [(prompt, chosen, True) for prompt, chosen, _ in pairs]
    return [chosen, [(prompt, rejected, False) for prompt, _, rejected in pairs]]


class Contrast(NamedTuple):
    """A labelled response and, to the same prompt, an unrelated response; texts or token ids."""

    prompt: Any
    response: Any
    desirable: bool
    unrelated: Any


def beside_others(sides: list[list[Labelled]], files: list[Path]) -> Iterator[Contrast]:
    """Labelled responses, each with the next response of its side to another prompt.

    Raises ValueError when all prompts are equal.
    """
    if all(prompt == sides[0][0][0] for prompt, *_ in sides[0]):
        raise ValueError(
            f"all samples of {', '.join(map(str, files))} have the same prompt: KTO compares with responses to other prompts, so "
            "give further prompts; of held-out samples, raise model.data.validation_fraction (--validation-fraction of "
            "`aligner data`) or give another validation file"
        )

    def contrasts(side: list[Labelled]) -> Iterator[Contrast]:
        others = _next_other([prompt for prompt, *_ in side])
        return (Contrast(*own, side[other][1]) for own, other in zip(side, others))

    return (contrast for group in zip(*map(contrasts, sides)) for contrast in group)


Join = Callable[[Any, Any], tuple[list[int], int]]
"""Maps prompt and response to token ids and the index of the response's first token."""


def labelled_sample(join: Join, max_length: int, contrast: Contrast) -> LabelledSample:
    """The sample of a labelled response. The unrelated response is cut to max_length, in tokens."""
    (own, start), (other, other_start) = (
        join(contrast.prompt, text) for text in (contrast.response, contrast.unrelated)
    )
    return LabelledSample(contrast.desirable, (own, other[:max_length]), (start, other_start))


def _labelled_samples(join: Join, max_length: int, contrasts: list[Contrast]) -> list[LabelledSample]:
    return [labelled_sample(join, max_length, contrast) for contrast in contrasts]


def _next_other(values: Sequence) -> list[int]:
    """For each value, the index of the next different value. The search wraps around. Needs two different values."""
    count = len(values)
    following = [0] * count
    # two rounds, so that the last values find their successors at the start
    for i in reversed(range(2 * count)):
        here, after = i % count, (i + 1) % count
        following[here] = after if values[after] != values[here] else following[after]
    return following
