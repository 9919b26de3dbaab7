"""Formatted data files (see data/) as token ids, and a count of the samples that were dropped or cut.

A sample that cannot be trained on is dropped, counted and reported, and so is one that loses tokens. A file
without any usable sample is an error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path

from aligner_lib.datasets.tokenizer import Tokenizer

EXAMPLES = 3  # places (FILE:LINE) shown for each reason


@dataclass
class LoadReport:
    """How many samples of a data set were dropped, and how many cut, by reason, with the first places of each."""

    total: int = 0  # samples seen, the dropped ones included
    dropped: Counter = field(default_factory=Counter)
    cut: Counter = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, place: str, reason: str) -> None:
        """Count one dropped sample; place is FILE:LINE."""
        self._count(self.dropped, place, reason)

    def note_cut(self, place: str, reason: str) -> None:
        """Count one sample that lost tokens."""
        self._count(self.cut, place, reason)

    def lines(self) -> list[str]:
        """One sentence for each reason."""
        told = {reason: f"{reason} (first: {', '.join(places)})" for reason, places in self.places.items()}
        return [
            *(
                f"{count} of {self.total} samples left out: {told[why]}"
                for why, count in self.dropped.items()
            ),
            *(f"{count} of {self.total} samples cut: {told[why]}" for why, count in self.cut.items()),
        ]

    def _count(self, reasons: Counter, place: str, reason: str) -> None:
        reasons[reason] += 1
        self.places.setdefault(reason, [])
        if len(self.places[reason]) < EXAMPLES:
            self.places[reason].append(place)


@dataclass(frozen=True)
class SFTSample:
    """One SFT sample: token ids of prompt and answer, and which of them count in the loss."""

    tokens: list[int]  # BOS where the tokenizer has one, input, output, stop token
    answer_start: int  # index of the output's first token
    others: tuple[
        tuple[int, int], ...
    ] = ()  # [from, to) of other roles' turns after answer_start: no loss there
    cut: str | None = None  # why tokens of the input are left out, where some are

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed for it."""
        return len(self.tokens)


@dataclass(frozen=True)
class PairSample:
    """One preference pair for the reward model: token ids of two texts with the same prompt."""

    chosen: list[int]  # prompt, better response, stop token
    rejected: list[int]  # the same prompt, worse response, stop token

    def __len__(self) -> int:
        return max(len(self.chosen), len(self.rejected))

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed for it: both texts'."""
        return len(self.chosen) + len(self.rejected)


@dataclass(frozen=True)
class PreferenceSample(PairSample):
    """One preference pair for a policy, which learns from the responses alone."""

    chosen_start: int  # index of the better response's first token
    rejected_start: int  # … and of the worse one's
    reference_logprobs: tuple[float, float] | None = None  # of both responses, where they are known

    @property
    def rows(self) -> tuple[list[int], list[int]]:
        """Chosen and rejected."""
        return self.chosen, self.rejected

    @property
    def starts(self) -> tuple[int, int]:
        """Where their responses begin."""
        return self.chosen_start, self.rejected_start


@dataclass(frozen=True)
class LabelledSample:
    """One response with a label, and beside it a response to another prompt, for KTO."""

    desirable: bool
    rows: tuple[list[int], list[int]]  # prompt, response, stop token; the same prompt with the other response
    starts: tuple[int, int]  # indices of the responses' first tokens
    reference_logprobs: tuple[float, float] | None = None  # of both responses, where they are known

    def __len__(self) -> int:
        return max(map(len, self.rows))

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed for it: both rows'."""
        return sum(map(len, self.rows))


@dataclass(frozen=True)
class PromptSample:
    """One prompt for PPO, as token ids and as text."""

    tokens: list[int]
    text: str

    def __len__(self) -> int:
        return len(self.tokens)


def load_sft(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[SFTSample], LoadReport]:
    """SFT samples from JSON Lines files, and what was dropped or cut. max_length: tokens.

    {"input", "output"} lines become `{input} {output}` and a stop token. The text is tokenised whole; which
    tokens are the output's, `Tokenizer.encode_parts` says. A sample over max_length loses the middle of its
    input's longest paragraph (`shorten`), never any of its output. If the output is empty, or too long by itself,
    the sample is dropped.

    A conversation has its turns in `messages` (role, content) or, as in NeMo-Aligner's chat data, in
    `conversations` (from, value) with an optional `system`. It becomes `User: …`, `Assistant: …` with an
    empty line between turns, as in HH. The loss covers every assistant turn, and the stop token after the
    last. A conversation over max_length is dropped.

    Raises FileNotFoundError for a missing file, ValueError when no sample is usable.
    """

    def make(record: dict) -> SFTSample | str:
        if "messages" in record or "conversations" in record:
            return _conversation(_turns(record), tokenizer, max_length)
        prompt, answer = _text(record, "input"), _text(record, "output")
        if not answer.strip():
            return "empty output"
        if not prompt.strip():
            return "empty input"
        *paragraphs, answer_ids = tokenizer.encode_parts([*PARAGRAPH_END.split(prompt), f" {answer}"])
        answer_ids.append(tokenizer.eos_id)
        room = max_length - len(tokenizer.bos_ids) - len(answer_ids)
        if room < 1:
            return f"output longer than {max_length} tokens (encoder_seq_length)"
        kept = shorten(paragraphs, room)
        prompt_ids = [*tokenizer.bos_ids, *chain(*kept)]
        cut = f"longer than {max_length} tokens (encoder_seq_length); the middle of the input's longest paragraph is gone"
        return SFTSample(prompt_ids + answer_ids, len(prompt_ids), cut=cut if kept != paragraphs else None)

    return _load(files, make)


PARAGRAPH_END = re.compile(r"(?<=\n\n)")


def shorten(paragraphs: list[list[int]], room: int) -> list[list[int]]:
    """The token ids of paragraphs without as many as there are over `room`.

    Tokens are taken out of the middle of the longest paragraph; if it is gone, out of the next one's. So a question
    stays whole beside a context that is longer, whether it comes first, as in half of Dolly's samples, or last;
    and of a single paragraph both ends stay, one of which asks.
    """
    kept = list(paragraphs)
    excess = sum(map(len, kept)) - room
    for i in sorted(range(len(kept)), key=lambda i: len(kept[i]), reverse=True):
        count = min(max(excess, 0), len(kept[i]))
        start = (len(kept[i]) - count + 1) // 2
        kept[i] = kept[i][:start] + kept[i][start + count :]
        excess -= count
    return kept


ROLES = {"system": "System", "user": "User", "human": "User", "assistant": "Assistant", "gpt": "Assistant"}


def _turns(record: dict) -> list[tuple[str, str]]:
    """The (role, text) of each turn; role is one of ROLES' values."""
    key, role, text = (
        ("messages", "role", "content") if "messages" in record else ("conversations", "from", "value")
    )
    turns = record[key]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError(f"{key!r} is no list of turns")
    opening = [("System", _text(record, "system"))] if record.get("system") else []
    named = [(_text(turn, role), _text(turn, text)) for turn in turns]
    if unknown := [name for name, _ in named if name.lower() not in ROLES]:
        raise ValueError(f"a turn is from {unknown[0]!r}; it may be from {', '.join(ROLES)}")
    return opening + [(ROLES[name.lower()], text) for name, text in named]


def _conversation(turns: list[tuple[str, str]], tokenizer: Tokenizer, max_length: int) -> SFTSample | str:
    if not turns or turns[-1][0] != "Assistant":
        return "the last turn is not the assistant's"
    if any(role == "Assistant" and not text.strip() for role, text in turns):
        return "an empty answer"
    parts = [part for role, text in turns for part in (f"\n\n{role}:", f" {text.strip()}")]
    parts[0] = parts[0].lstrip()
    tokens, answers = list(tokenizer.bos_ids), []
    for i, ids in enumerate(tokenizer.encode_parts(parts)):
        if i % 2 and turns[i // 2][0] == "Assistant":
            answers.append((len(tokens), len(tokens) + len(ids)))
        tokens += ids
    tokens.append(tokenizer.eos_id)
    if len(tokens) > max_length:
        return f"longer than {max_length} tokens (encoder_seq_length)"
    return SFTSample(tokens, answers[0][0], tuple((end, start) for (_, end), (start, _) in pairwise(answers)))


def load_pairs(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[PairSample], LoadReport]:
    """Preference pairs from {"text"} lines, chosen before rejected, and what was dropped. max_length: tokens.

    Both texts end with the stop token, like the responses that PPO scores. An empty line within a file counts
    as one record, so that the lines after it keep their partners.

    Raises FileNotFoundError for a missing file, ValueError when no pair is usable.
    """

    def make(records: tuple[dict, dict]) -> PairSample | str:
        texts = [_text(record, "text") for record in records]
        if not all(text.strip() for text in texts):
            return "empty text"
        pair = PairSample(*(ids + [tokenizer.eos_id] for ids in tokenizer.encode_batch(texts)))
        return _problem(pair, max_length) or pair

    return _load(files, make, group=2)


def load_preferences(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[PreferenceSample], LoadReport]:
    """As `load_pairs`, and where the responses begin: behind the last `Assistant:` of a text.

    A pair without one, or whose prompts differ, is dropped.
    """

    def make(records: tuple[dict, dict]) -> PreferenceSample | str:
        texts = _prompt_and_responses(records)
        if isinstance(texts, str):
            return texts
        prompt, *responses = texts
        (chosen, chosen_start), (rejected, rejected_start) = (
            with_response(tokenizer, prompt, response) for response in responses
        )
        pair = PreferenceSample(chosen, rejected, chosen_start, rejected_start)
        return _problem(pair, max_length) or pair

    return _load(files, make, group=2)


def load_labelled(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[LabelledSample], LoadReport]:
    """Responses with labels, and what was dropped. max_length: tokens.

    {"prompt", "response", "label"} lines become `{prompt} {response}` and a stop token; the label is true for a response
    that is desirable. Or pairs, as `load_preferences` takes them, taken apart: the chosen response is desirable, the
    rejected one is not. Each sample has beside it the response of the next one with another prompt (of pairs: the next
    chosen or the next rejected one), cut to max_length.

    Raises FileNotFoundError for a missing file, ValueError when no sample is usable, or when all have the same prompt.
    """

    def make(record: dict) -> tuple[str, str, bool] | str:
        prompt, response, label = _text(record, "prompt"), _text(record, "response"), record["label"]
        if not isinstance(label, bool):
            raise ValueError(f"'label' is {label!r}; it may be true or false")
        if not prompt.strip() or not response.strip():
            return "empty prompt or response"
        return too_long(prompt, f" {response}") or (prompt, f" {response}", label)

    def make_two(records: tuple[dict, dict]) -> tuple[str, str, str] | str:
        texts = _prompt_and_responses(records)
        if isinstance(texts, str):
            return texts
        prompt, *responses = texts
        if responses[0] == responses[1]:
            return "chosen and rejected are equal"
        return next(filter(None, (too_long(prompt, response) for response in responses)), texts)

    def too_long(prompt: str, response: str) -> str | None:
        too_many = len(with_response(tokenizer, prompt, response)[0]) > max_length
        return f"longer than {max_length} tokens (encoder_seq_length)" if too_many else None

    files = [Path(file) for file in files]
    if _is_labelled(files):
        texts, report = _load(files, make)
        sides = [texts]
    else:
        pairs, report = _load(files, make_two, group=2)
        sides = [[(prompt, chosen, True) for prompt, chosen, _ in pairs]]
        sides.append([(prompt, rejected, False) for prompt, _, rejected in pairs])
    if len({prompt for prompt, *_ in sides[0]}) == 1:
        raise ValueError(
            f"all samples of {', '.join(map(str, files))} have the same prompt: KTO compares with responses to another one"
        )

    def labelled(side: list[tuple[str, str, bool]]) -> list[LabelledSample]:
        others = _next_other([prompt for prompt, *_ in side])
        return [sample(*own, side[other][1]) for own, other in zip(side, others)]

    def sample(prompt: str, response: str, label: bool, unrelated: str) -> LabelledSample:
        (own, start), (other, other_start) = (
            with_response(tokenizer, prompt, text) for text in (response, unrelated)
        )
        return LabelledSample(label, (own, other[:max_length]), (start, other_start))

    return [sample for group in zip(*map(labelled, sides)) for sample in group], report


def _is_labelled(files: list[Path]) -> bool:
    """Whether the first line that there is has a label."""
    lines = (line for file in files if file.exists() for _, line in _numbered_lines(file) if line.strip())
    try:
        return "label" in _parse(next(lines, ""))
    except ValueError:
        return False


def _next_other(values: Sequence) -> list[int]:
    """For each value the index of the next one that is another, beginning anew behind the last. Two values at least differ."""
    count = len(values)
    following = [0] * count
    for i in reversed(range(2 * count)):  # twice round: the last ones look behind the end
        here, after = i % count, (i + 1) % count
        following[here] = after if values[after] != values[here] else following[after]
    return following


ANSWER = "Assistant:"


def _prompt_and_responses(records: tuple[dict, dict]) -> tuple[str, str, str] | str:
    """Prompt, better and worse response of a pair's two texts; or why it has none."""
    turns = [_text(record, "text").rpartition(ANSWER) for record in records]
    (prompt, chosen), (other, rejected) = ((before + mark, text) for before, mark, text in turns)
    if not prompt or not other or not chosen.strip() or not rejected.strip():
        return f"no answer behind a last {ANSWER!r}"
    return "chosen and rejected have different prompts" if prompt != other else (prompt, chosen, rejected)


def with_response(tokenizer: Tokenizer, prompt: str, response: str) -> tuple[list[int], int]:
    """Token ids of prompt, response and stop token, and where the response begins."""
    before, ids = tokenizer.encode_parts([prompt, response])
    return [*tokenizer.bos_ids, *before, *ids, tokenizer.eos_id], len(tokenizer.bos_ids) + len(before)


def _problem(pair: PairSample, max_length: int) -> str | None:
    """Why nothing can be learnt from a pair."""
    if pair.chosen == pair.rejected:
        return "chosen and rejected are equal"
    return f"longer than {max_length} tokens (encoder_seq_length)" if len(pair) > max_length else None


def load_prompts(
    files: Iterable[Path], tokenizer: Tokenizer, max_length: int
) -> tuple[list[PromptSample], LoadReport]:
    """Prompts from {"text"} lines, and what was dropped.

    max_length: tokens in a prompt; the rest of encoder_seq_length is for the response. Raises
    FileNotFoundError for a missing file, ValueError when no prompt is usable.
    """

    def make(record: dict) -> PromptSample | str:
        text = _text(record, "text")
        if not text.strip():
            return "empty text"
        ids = tokenizer.encode(text)
        if len(ids) > max_length:
            return f"longer than {max_length} tokens (encoder_seq_length less the response's max_length)"
        return PromptSample(ids, text)

    return _load(files, make)


def _load(files: Iterable[Path], make: Callable, group: int = 1) -> tuple[list, LoadReport]:
    """Samples from groups of consecutive lines; make returns a sample, or the reason to drop the group."""
    samples, report = [], LoadReport()
    files = [Path(file) for file in files]
    for file in files:
        if not file.exists():
            raise FileNotFoundError(
                f"data file {file} does not exist: `aligner data --help` shows how to make one"
            )
        lines = _numbered_lines(file)
        if group == 1:
            lines = [(number, line) for number, line in lines if line.strip()]
        unsure = _in_doubt([line for _, line in lines])
        for i in range(0, len(lines), group):
            report.total += 1
            place = f"{file.name}:{lines[i][0]}"
            try:
                if len(lines) - i < group:
                    raise ValueError("a chosen line without its rejected one")
                records = tuple(_parse(line) for _, line in lines[i : i + group])
                if i in unsure:
                    raise ValueError("not certain which lines are a pair, after an empty one")
                sample = make(records if group > 1 else records[0])
            except ValueError as error:
                sample = str(error)
            if isinstance(sample, str):
                report.drop(place, sample)
                continue
            if isinstance(sample, SFTSample) and sample.cut:
                report.note_cut(place, sample.cut)
            samples.append(sample)
    if not samples:
        raise ValueError(
            f"no usable sample in {', '.join(map(str, files)) or 'an empty list of files'}: "
            + ("; ".join(report.lines()) or "there is no line in it")
        )
    return samples, report


def _numbered_lines(file: Path) -> list[tuple[int, str]]:
    """A file's lines and their numbers; empty ones within it are kept, those at its end are not."""
    with open(file, encoding="utf-8-sig", errors="surrogateescape") as handle:
        lines = list(enumerate(handle, 1))
    while lines and not lines[-1][1].strip():
        lines.pop()
    return lines


def _in_doubt(lines: list[str]) -> set[int]:
    """Indices of the lines whose pairing is uncertain after an empty line.

    An empty line may stand for a lost record, or may merely separate two pairs. Lines between empty ones are
    uncertain when both readings are possible and pair them differently.
    """
    unsure: set[int] = set()
    for is_text, run in groupby(range(len(lines)), key=lambda index: bool(lines[index].strip())):
        run = list(run)
        if is_text and run[0] % 2 == 1 and len(run) % 2 == 0:
            unsure.update(run)
    return unsure


def _parse(line: str) -> dict:
    if not line.strip():
        raise ValueError("empty line")
    try:
        line.encode("utf-8")
        record = json.loads(line)
    except UnicodeEncodeError:
        raise ValueError("not UTF-8") from None
    # ValueError also covers integers beyond Python's digit limit, RecursionError a thousand brackets.
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _text(record: dict, key: str) -> str:
    if key not in record:
        raise ValueError(f"no key {key!r}")
    if not isinstance(record[key], str):
        raise ValueError(f"{key!r} is no text")
    try:
        record[key].encode()
    except UnicodeEncodeError:  # \ud83d passes JSON, and would be the tokenizer's TypeError
        raise ValueError(f"{key!r} has half a surrogate pair") from None
    return record[key]
