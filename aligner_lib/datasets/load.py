"""Formatted data files (see data/) as token ids, with a count of the dropped and the cut samples.

Unusable samples are dropped, counted and reported. Samples that lose tokens are reported, too. A file without any usable sample
is an error. A key that is neither read nor metadata (`record_keys`) is also an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from aligner_lib.datasets.chat_template import (
    ANSWER,
    OWN,
    ROLES,
    Conversation,
    Message,
    StopTokenError,
    answer_of,
    answered_texts,
    encode_prompt,
    stop_token_within,
    with_response,
)
from aligner_lib.datasets.json_lines import first_record, in_doubt, numbered_lines, parse, text_of
from aligner_lib.datasets.record_keys import (
    RecordForm,
    UnreadKey,
    check_keys,
    labelled_form,
    pair_form,
    prompt_form,
    sft_form,
    text_form,
)
from aligner_lib.datasets.samples import (
    LabelledSample,
    LoadReport,
    PairSample,
    PreferenceSample,
    PromptSample,
    SFTSample,
)
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.tool_calls import (
    Tool,
    ToolCall,
    calling_message,
    in_words,
    uses_tools,
)
from aligner_lib.datasets.worker_processes import in_chunks, results
from aligner_lib.errors import UserError
from data.tools import check_results, checked_calls, checked_tools

UNBOUNDED = 1 << 30  # a limit of tokens that drops no sample
Collect = Callable[[Iterator, LoadReport], Sequence]
"""Keeps the samples that a loader makes one by one. The report is complete when all samples are made."""


def in_memory(samples: Iterator, report: LoadReport) -> Sequence:
    """Keep the samples in a list."""
    return list(samples)


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

    return _load(
        files, partial(_sft_samples, tokenizer, max_length), sft_form, collect=collect, workers=workers
    )


def _sft_samples(tokenizer: Tokenizer, max_length: int, record: dict) -> SFTSample | list[SFTSample] | str:
    if "messages" in record or "conversations" in record:
        tools = checked_tools(record["tools"]) if record.get("tools") else []
        return _conversation(_turns(record), tools, tokenizer, max_length)
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
        context, target = answer_of(tokenizer, [_message("User", prompt), _message("Assistant", answer)])
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


class Turn(NamedTuple):
    """A turn of a conversation; role: one of ROLES' values, or Tool."""

    role: str
    text: str
    learnt: bool
    """Whether the loss covers the turn: True for an answer, unless its weight is 0."""
    calls: tuple[ToolCall, ...] = ()

    def message(self) -> Message:
        content = self.text.strip()
        return calling_message(self.calls, content) if self.calls else _message(self.role, content)


def _turns(record: dict) -> list[Turn]:
    key, role, text = (
        ("messages", "role", "content") if "messages" in record else ("conversations", "from", "value")
    )
    turns = record[key]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError(f"{key!r} is not a list of turns")
    opening = [Turn("System", text_of(record, "system"), False)] if record.get("system") else []
    read = opening + [_turn(turn, text_of(turn, role), text) for turn in turns]
    check_results(turns)
    return read


def _turn(turn: dict, name: str, text_key: str) -> Turn:
    roles = ROLES if text_key == "value" else ROLES | {"tool": "Tool"}
    if name.lower() not in roles:
        raise ValueError(f"a turn has the role {name!r}; the roles are {', '.join(roles)}")
    if turn.get("weight") not in (None, 0, 1):
        raise ValueError(f"a turn has the weight {turn['weight']!r}, but must be 0 or 1")
    role = roles[name.lower()]
    calls = checked_calls(turn["tool_calls"]) if turn.get("tool_calls") else []
    if calls and role != "Assistant":
        raise ValueError(
            f"a turn with the role {name!r} has 'tool_calls', which only an assistant's turn may have"
        )
    text = "" if calls and turn.get(text_key) is None else text_of(turn, text_key)
    return Turn(role, text, role == "Assistant" and turn.get("weight") != 0, tuple(calls))


def _conversation(
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


def _message(role: str, text: str) -> Message:
    return {"role": role.lower(), "content": text}


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

    return _load_pairs(files, partial(_pair, tokenizer, max_length), collect, workers)


def _pair(tokenizer: Tokenizer, max_length: int, *records: dict) -> PairSample | str:
    texts = [text_of(record, "text") for record in records if "text" in record]
    if not all(text.strip() for text in texts):
        return "empty text"
    if tokenizer.template == OWN or not texts:
        parts = _prompt_and_responses(records)
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

    return _load_pairs(files, partial(_preference, tokenizer, max_length), collect, workers)


def _preference(tokenizer: Tokenizer, max_length: int, *records: dict) -> PreferenceSample | str:
    texts = _prompt_and_responses(records)
    if isinstance(texts, str):
        return texts
    prompt, *responses = texts
    (chosen, chosen_start), (rejected, rejected_start) = (
        with_response(tokenizer, prompt, response) for response in responses
    )
    pair = PreferenceSample(chosen, rejected, chosen_start, rejected_start)
    return pair_problem(pair, max_length) or pair


def load_labelled(
    files: Iterable[Path],
    tokenizer: Tokenizer,
    max_length: int,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence[LabelledSample], LoadReport]:
    """Responses with labels, and a report of the dropped samples. max_length: tokens; workers: as for `load_sft`.

    {"prompt", "response", "label"} lines become `{prompt} {response}` and a stop token. The template writes a prompt of turns.
    With the tokenizer's own template, the paragraphs of a text that ends in `Assistant:` are turns, and any other text is one
    user's turn, also when it quotes a conversation. The label is true for a desirable response. Pairs, in the form of `load_preferences`, are split in two: the chosen response
    is desirable, the rejected response is not. Each sample also holds the same prompt with an unrelated response, cut to
    max_length. The unrelated response is the next response in the file to another prompt (for pairs, the next chosen or the
    next rejected response).

    Raises FileNotFoundError for a missing file, ValueError when no sample is usable, or when all samples have the same prompt.
    """

    files = [Path(file) for file in files]
    if "label" in first_record(files):
        texts, report = _load(
            files, partial(_labelled, tokenizer, max_length), labelled_form, workers=workers
        )
        sides = [texts]
    else:
        pairs, report = _load_pairs(files, partial(_two_labelled, tokenizer, max_length), workers=workers)
        sides = labelled_sides(pairs)
    contrasts = in_chunks(
        beside_others(sides, files), CHUNK, lambda contrast: sum(len(str(text)) for text in contrast)
    )
    task = partial(_labelled_samples, partial(with_response, tokenizer), max_length)
    return collect(chain.from_iterable(results(task, contrasts, workers)), report), report


def _labelled(tokenizer: Tokenizer, max_length: int, record: dict) -> tuple[Conversation, str, bool] | str:
    text = record.get("prompt")
    is_plain_prompt = isinstance(text, str) and text.rstrip().endswith(ANSWER)
    prompt = _text_or_turns(record, "prompt", as_turns=tokenizer.template == OWN and not is_plain_prompt)
    response, label = _answer(record, "response"), record["label"]
    if not isinstance(label, bool):
        raise ValueError(f"'label' is {label!r}, but must be true or false")
    if not response.strip() or (isinstance(text, str) and not text.strip()):
        return "empty prompt or response"
    return _too_long(tokenizer, max_length, prompt, f" {response}") or (prompt, f" {response}", label)


def _two_labelled(
    tokenizer: Tokenizer, max_length: int, *records: dict
) -> tuple[Conversation, str, str] | str:
    texts = _prompt_and_responses(records)
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


def _load_pairs(
    files: Iterable[Path], make: Callable, collect: Collect = in_memory, workers: int = 1
) -> tuple[Sequence, LoadReport]:
    """Samples of pairs. make gets the record of a pair, or the two records of its texts."""
    files = [Path(file) for file in files]
    if "chosen" in first_record(files):
        return _load(files, make, pair_form, collect=collect, workers=workers)
    return _load(files, make, text_form, group=2, collect=collect, workers=workers)


def _prompt_and_responses(records: tuple[dict, ...]) -> tuple[Conversation, str, str] | str:
    """The prompt, the chosen and the rejected response of a pair, or the reason to drop the pair."""
    if len(records) == 1:
        return _text_or_turns(records[0], "prompt", as_turns=True), *(
            f" {_answer(records[0], side).strip()}" for side in ("chosen", "rejected")
        )
    turns = [text_of(record, "text").rpartition(ANSWER) for record in records]
    (prompt, chosen), (other, rejected) = ((before + mark, text) for before, mark, text in turns)
    if not prompt or not other or not chosen.strip() or not rejected.strip():
        return f"no answer behind a last {ANSWER!r}"
    return "chosen and rejected have different prompts" if prompt != other else (prompt, chosen, rejected)


def _text_or_turns(record: dict, key: str, as_turns: bool = False) -> Conversation:
    """A prompt as a text or as turns. as_turns: a text becomes a user's turn."""
    if not isinstance(record.get(key), list):
        text = text_of(record, key)
        return [_message("User", text)] if as_turns else text
    turns = [_message(turn.role, turn.text.strip()) for turn in _turns({"messages": record[key]})]
    if not turns or turns[-1]["role"] == "assistant":
        raise ValueError(f"the last turn of {key!r} is not the user's")
    return turns


def _answer(record: dict, key: str) -> str:
    """The text of a response, which is stored as a text or as a single turn of the assistant's."""
    if not isinstance(record.get(key), list):
        text = text_of(record, key)
    else:
        turns = _turns({"messages": record[key]})
        if [turn.role for turn in turns] != ["Assistant"]:
            raise ValueError(
                f"{key!r} is not a single turn of the assistant: convert conversations that include the prompt with "
                "`aligner data`"
            )
        text = turns[0].text
    if not text.strip():
        raise ValueError(f"{key!r} is empty")
    return text


def length_of_record(record: dict, tokenizer: Tokenizer) -> int | None:
    """The length in tokens of a sample that `data.convert` wrote; in a pair, the longer response counts.

    None for a record that no length makes usable, such as an answer that contains a stop token.
    """
    if "messages" in record:
        tools = checked_tools(record["tools"]) if record.get("tools") else []
        samples = _conversation(_turns(record), tools, tokenizer, UNBOUNDED)
        return None if isinstance(samples, str) else max(map(len, samples))
    prompt = _text_or_turns(record, "prompt", as_turns=True)
    responses = [f" {record[key].strip()}" for key in ("chosen", "rejected", "response") if key in record]
    if not responses:
        return len(encode_prompt(tokenizer, prompt))
    return max(len(with_response(tokenizer, prompt, response)[0]) for response in responses)


def pair_problem(pair: PairSample, max_length: int) -> str | None:
    """The reason to drop a pair; None for a usable pair."""
    if pair.chosen == pair.rejected:
        return "chosen and rejected are equal"
    return f"longer than {max_length} tokens (encoder_seq_length)" if len(pair) > max_length else None


def load_prompts(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[PromptSample], LoadReport]:
    """Prompts, and a report of the dropped prompts. A prompt is a {"text"} line, or a {"prompt"} line with a text or turns.

    max_length: tokens in a prompt; the rest of encoder_seq_length is for the response. Raises FileNotFoundError for a missing
    file, ValueError when no prompt is usable.
    """

    def make(record: dict) -> PromptSample | str:
        prompt = (
            _text_or_turns(record, "prompt", as_turns=True) if "prompt" in record else text_of(record, "text")
        )
        if isinstance(prompt, str) and not prompt.strip():
            return "empty text"
        ids = encode_prompt(tokenizer, prompt)
        as_it_is = isinstance(prompt, str) and tokenizer.template != OWN
        return prompt_sample(
            ids, prompt if as_it_is else tokenizer.decode(ids, special_tokens=True), max_length
        )

    return _load(files, make, prompt_form)


def prompt_sample(ids: list[int], text: str, max_length: int) -> PromptSample | str:
    """The sample of a prompt, or the reason to drop the prompt."""
    if len(ids) > max_length:
        return f"longer than {max_length} tokens (encoder_seq_length less the response's max_length)"
    return PromptSample(ids, text)


def _load(
    files: Iterable[Path],
    make: Callable,
    form_of: Callable[[dict], RecordForm],
    group: int = 1,
    collect: Collect = in_memory,
    workers: int = 1,
) -> tuple[Sequence, LoadReport]:
    """Samples from groups of consecutive lines. make returns a sample, several samples, or the reason to drop the group.

    form_of: maps a record to its form. With several workers, make and form_of are pickled. Raises UnreadKey for a record with a
    key that its form does not read.
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
    """What `make` made of a chunk's groups."""

    samples: list[tuple[str, Any]]
    """For each group its place (FILE:LINE), and a sample, a list of samples, or the reason to drop the group."""
    ignored: Counter
    """The number of records with a metadata key, by key."""


CHUNK = 100
"""The groups that a worker gets at a time."""


def _made(task: Callable, chunks: Iterable[list[Group]], report: LoadReport, workers: int) -> Iterator:
    """The samples of `_load`, one by one. Adds to the report."""
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
