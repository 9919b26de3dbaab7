"""Preference pairs: for the reward model, and with the start of each response for DPO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from aligner_lib.datasets.chat_template import ANSWER, OWN, Conversation, stop_token_within, with_response
from aligner_lib.datasets.json_lines import first_record, text_of
from aligner_lib.datasets.load.lines import Collect, in_memory, load_lines
from aligner_lib.datasets.load.turns import after_prompt, response_text, text_or_turns
from aligner_lib.datasets.record_keys import pair_form, text_form
from aligner_lib.datasets.samples import LoadReport, PairSample, PreferenceSample
from aligner_lib.datasets.tokenizer import Tokenizer


def load_pairs(
    files: Iterable[Path],
    tokenizer: Tokenizer,
    max_length: int,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence[PairSample], LoadReport]:
    """Preference pairs, and a report of the dropped pairs. max_length: tokens; workers: as for `load_sft`.

    A pair is a line {"prompt", "chosen", "rejected"}, each a text or a list of turns, or two {"text"} lines, chosen before
    rejected. All lines of a file have the same form. Both responses end with the stop token, like the responses that PPO
    scores. An empty line among {"text"} lines counts as one record, so that later lines keep their partners.

    Raises FileNotFoundError for a missing file, ValueError when no pair is usable.
    """

    return load_pair_lines(files, partial(_pair, tokenizer, max_length), collect, workers)


def _pair(tokenizer: Tokenizer, max_length: int, *records: dict) -> PairSample | str:
    texts = [text_of(record, "text") for record in records] if len(records) == 2 else []
    if not all(text.strip() for text in texts):
        return "empty text"
    if tokenizer.template == OWN or not texts:
        parts = prompt_and_responses(records)
        if isinstance(parts, str):
            return parts
        prompt, *responses = parts
        rows = [with_response(tokenizer, prompt, response)[0] for response in responses]
    else:
        rows = [ids + [tokenizer.eos_id] for ids in tokenizer.encode_batch(texts)]
        for text, row in zip(texts, rows):
            own = row[len(tokenizer.bos_ids) : -1]  # the BOS token may also be the stop token
            if stop_token_within(tokenizer, own) and (reason := _stop_in_answer(tokenizer, text)):
                return reason
    pair = PairSample(*rows)
    return pair_problem(pair, max_length) or pair


def _stop_in_answer(tokenizer: Tokenizer, text: str) -> str | None:
    """The reason to drop a text whose answer, after the last `Assistant:`, contains a stop token."""
    before, mark, answer = text.rpartition(ANSWER)
    # a text without the mark does not say where its answer begins, and its prompt may contain stop tokens
    return stop_token_within(tokenizer, tokenizer.encode_parts([before + mark, answer])[1]) if mark else None


def load_preferences(
    files: Iterable[Path],
    tokenizer: Tokenizer,
    max_length: int,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence[PreferenceSample], LoadReport]:
    """The pairs of `load_pairs`, with the index of each response's first token.

    A response in a text begins after the last `Assistant:`. A pair of texts without `Assistant:`, or with two different
    prompts, is dropped.
    """

    return load_pair_lines(files, partial(_preference, tokenizer, max_length), collect, workers)


def _preference(tokenizer: Tokenizer, max_length: int, *records: dict) -> PreferenceSample | str:
    texts = prompt_and_responses(records)
    if isinstance(texts, str):
        return texts
    prompt, *responses = texts
    (chosen, chosen_start), (rejected, rejected_start) = (
        with_response(tokenizer, prompt, response) for response in responses
    )
    pair = PreferenceSample(chosen, rejected, chosen_start, rejected_start)
    return pair_problem(pair, max_length) or pair


def load_pair_lines(
    files: Iterable[Path], make: Callable, collect: Collect = in_memory, workers: int = 1
) -> tuple[Sequence, LoadReport]:
    """Samples of pairs. make gets the record of a pair, or the two records of its texts."""
    files = [Path(file) for file in files]
    if "chosen" in first_record(files):
        return load_lines(files, make, pair_form, collect=collect, workers=workers)
    return load_lines(files, make, text_form, group=2, collect=collect, workers=workers)


def prompt_and_responses(records: tuple[dict, ...]) -> tuple[Conversation, str, str] | str:
    """The prompt, the chosen and the rejected response of a pair, or the reason to drop the pair."""
    if len(records) == 1:
        prompt = text_or_turns(records[0], "prompt", as_turns=True)
        sides = (response_text(records[0], side) for side in ("chosen", "rejected"))
        return prompt, *(
            after_prompt(prompt, side if isinstance(prompt, str) else side.strip()) for side in sides
        )
    turns = [text_of(record, "text").rpartition(ANSWER) for record in records]
    (prompt, chosen), (other, rejected) = ((before + mark, text) for before, mark, text in turns)
    if not prompt or not other or not chosen.strip() or not rejected.strip():
        return f"no answer behind a last {ANSWER!r}"
    return "chosen and rejected have different prompts" if prompt != other else (prompt, chosen, rejected)


def pair_problem(pair: PairSample, max_length: int) -> str | None:
    """The reason to drop a pair; None for a usable pair."""
    if pair.chosen == pair.rejected:
        return "chosen and rejected are equal"
    return f"longer than {max_length} tokens (encoder_seq_length)" if len(pair) > max_length else None
