"""SFT samples: inputs with outputs, and conversations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from aligner_lib.datasets.chat_template import OWN, answer_of, answered_texts, stop_token_within
from aligner_lib.datasets.json_lines import text_of
from aligner_lib.datasets.load.lines import Collect, in_memory, load_lines
from aligner_lib.datasets.load.turns import Turn, as_message, turns_in_record
from aligner_lib.datasets.record_keys import sft_form
from aligner_lib.datasets.samples import LoadReport, SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.tool_calls import Tool, in_words, uses_tools
from data.tools import checked_tools


def load_sft(
    files: Iterable[Path],
    tokenizer: Tokenizer,
    max_length: int,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence[SFTSample], LoadReport]:
    """SFT samples from JSON Lines files, and a report of the dropped and the cut samples. max_length: tokens;
    collect: keeps the samples; workers: the number of processes that make samples. The number does not change the result.

    {"input", "output"} lines become `{input} {output}` and a stop token. The text is tokenised as a whole;
    `Tokenizer.encode_parts` decides which tokens belong to the output. A sample over max_length loses the middle of its input's
    longest paragraph (`shorten`), never a part of its output. A sample whose output is empty, or too long by itself, is
    dropped.

    A conversation has its turns in `messages` (role, content) or, as in NeMo-Aligner's chat data, in `conversations` (from,
    value) with an optional `system`. The turns become `User: …`, `Assistant: …` with an empty line between turns, as in HH. The
    loss covers every assistant turn, and the stop token after the last turn. A conversation over max_length is dropped.

    With the tokenizer's own template (`chat_template.use_template`), both forms are written in this template, input and output
    as a conversation of two turns, and the loss covers every answer with its stop token. If the template changes earlier turns
    when later turns follow, each answer becomes a separate sample, so that its context is the context that the policy will
    read.

    A turn's `weight` of 0 excludes an answer from the loss: the policy reads the answer and does not learn to write it.

    Beside `messages`, `tools` has the functions that the assistant may call. An assistant's turn may have `tool_calls`, and a turn
    of the role `tool` is a result, all in OpenAI's form. A template that knows tools writes them; otherwise they have the default
    form (`tool_calls.in_words`). The loss covers the calls and never the results.

    Raises FileNotFoundError for a missing file, ValueError when no sample is usable, StopTokenError for a template whose
    answers end without a stop token.
    """

    return load_lines(
        files, partial(_sft_samples, tokenizer, max_length), sft_form, collect=collect, workers=workers
    )


def _sft_samples(tokenizer: Tokenizer, max_length: int, record: dict) -> SFTSample | list[SFTSample] | str:
    if "messages" in record or "conversations" in record:
        tools = checked_tools(record["tools"]) if record.get("tools") else []
        return conversation_samples(turns_in_record(record), tools, tokenizer, max_length)
    prompt, answer = text_of(record, "input"), text_of(record, "output")
    if not answer.strip():
        return "empty output"
    if not prompt.strip():
        return "empty input"
    return _instruction(prompt, answer, tokenizer, max_length)


def _instruction(prompt: str, answer: str, tokenizer: Tokenizer, max_length: int) -> SFTSample | str:
    """The sample of an input and its output, or the reason to drop the record."""
    if tokenizer.template == OWN:
        prompt, answer = prompt.strip(), answer.strip()
        context, target = answer_of(tokenizer, [as_message("User", prompt), as_message("Assistant", answer)])
        before, question, after = context.partition(prompt)
        paragraphs = PARAGRAPH_END.split(question)
        head, *paragraphs, tail, answer_ids = tokenizer.encode_parts([before, *paragraphs, after, target])
    else:
        head, tail = tokenizer.bos_ids, []
        *paragraphs, answer_ids = tokenizer.encode_parts([*PARAGRAPH_END.split(prompt), f" {answer}"])
        answer_ids.append(tokenizer.eos_id)
    if reason := stop_token_within(tokenizer, answer_ids[:-1]):
        return reason
    room = max_length - len(head) - len(tail) - len(answer_ids)
    if room < 1:
        return f"output longer than {max_length} tokens (encoder_seq_length)"
    kept = shorten(paragraphs, room)
    prompt_ids = [*head, *chain(*kept), *tail]
    cut = f"longer than {max_length} tokens (encoder_seq_length); the middle of the input's longest paragraph was removed"
    return SFTSample(prompt_ids + answer_ids, len(prompt_ids), cut=cut if kept != paragraphs else None)


PARAGRAPH_END = re.compile(r"(?<=\n\n)")


def shorten(paragraphs: list[list[int]], room: int) -> list[list[int]]:
    """The token ids of paragraphs, shortened to `room` tokens.

    Tokens are removed from the middle of the longest paragraph. Once this paragraph is empty, tokens are removed from the next
    longest. Therefore a question beside a longer context stays whole, whether the question comes first, as in half of Dolly's
    samples, or last. A single paragraph keeps both ends, because the question usually stands at one end.
    """
    kept = list(paragraphs)
    excess = sum(map(len, kept)) - room
    for i in sorted(range(len(kept)), key=lambda i: len(kept[i]), reverse=True):
        count = min(max(excess, 0), len(kept[i]))
        start = (len(kept[i]) - count + 1) // 2
        kept[i] = kept[i][:start] + kept[i][start + count :]
        excess -= count
    return kept


def conversation_samples(
    turns: list[Turn], tools: list[Tool], tokenizer: Tokenizer, max_length: int
) -> list[SFTSample] | str:
    if not turns or turns[-1].role != "Assistant":
        return "the last turn is not the assistant's"
    answers = [turn for turn in turns if turn.role == "Assistant"]
    if not all(turn.text.strip() or turn.calls for turn in answers):
        return "an empty answer"
    if not any(turn.learnt for turn in answers):
        return "every answer has the weight 0"
    messages, learnt = [turn.message() for turn in turns], iter(answers)
    if tokenizer.template == OWN:
        texts = answered_texts(tokenizer, messages, tools)
        wholes = [
            [(part, i % 2 == 1 and next(learnt).learnt) for i, part in enumerate(text)] for text in texts
        ]
        wholes = [parts for parts in wholes if any(counts for _, counts in parts)]
        begin, end = [], []
    else:
        with_tools = uses_tools(messages, tools)
        # the stop token after the last answer is learnt, so the answer must be learnt, too
        if not turns[-1].learnt and not with_tools:
            return "the last answer has the weight 0: leave the turns behind the last learnt answer out"
        if with_tools:
            messages = in_words(messages, tools)
        parts = [
            part
            for message in messages
            for part in (
                (f"\n\n{message['role'].capitalize()}:", False),
                (f" {message['content']}", message["role"] == "assistant" and next(learnt).learnt),
            )
        ]
        parts[0] = (parts[0][0].lstrip(), False)
        # a policy that does not stop after a call writes the tool's result itself, so each answer has a sample with its stop token
        wholes = _each_answer_last(parts) if with_tools else [parts]
        begin, end = tokenizer.bos_ids, [tokenizer.eos_id]
    samples = [_of_parts(parts, begin, end, tokenizer, max_length) for parts in wholes]
    return next((reason for reason in samples if isinstance(reason, str)), samples)


def _each_answer_last(parts: list[tuple[str, bool]]) -> list[list[tuple[str, bool]]]:
    """For each part in the loss, the parts up to this part, with this part alone in the loss."""
    return [
        [(earlier, False) for earlier, _ in parts[:i]] + [(text, True)]
        for i, (text, learnt) in enumerate(parts)
        if learnt
    ]


def _of_parts(
    parts: list[tuple[str, bool]], begin: list[int], end: list[int], tokenizer: Tokenizer, max_length: int
) -> SFTSample | str:
    """The sample of a conversation. parts: texts, and whether each is in the loss; begin, end: token ids around the texts."""
    tokens, answers = list(begin), []
    for ids, (_, learnt) in zip(tokenizer.encode_parts([text for text, _ in parts]), parts):
        if learnt:
            answers.append((len(tokens), len(tokens) + len(ids)))
            if reason := stop_token_within(tokenizer, ids if end else ids[:-1]):
                return reason
        tokens += ids
    answers.append((len(tokens), len(tokens)))  # turns behind the last learnt answer are not learnt, either
    tokens += end
    if len(tokens) > max_length:
        return f"longer than {max_length} tokens (encoder_seq_length)"
    gaps = ((end, start) for (_, end), (start, _) in pairwise(answers) if end < start)
    return SFTSample(tokens, answers[0][0], tuple(gaps))
