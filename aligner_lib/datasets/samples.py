"""Samples as token ids, masks of the tokens in the loss, and a count of the dropped and the cut samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

EXAMPLES = 3  # places (FILE:LINE) shown for each reason


@dataclass
class LoadReport:
    """The numbers of dropped and of cut samples of a data set, by reason, with the first places for each reason."""

    total: int = 0
    """The number of samples in the files, dropped samples included."""
    dropped: Counter = field(default_factory=Counter)
    cut: Counter = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    ignored: Counter = field(default_factory=Counter)
    """The number of records with a metadata key, by key."""

    def drop(self, place: str, reason: str) -> None:
        """Count a dropped sample. place: FILE:LINE."""
        self._count(self.dropped, place, reason)

    def note_cut(self, place: str, reason: str) -> None:
        """Count a sample that lost tokens."""
        self._count(self.cut, place, reason)

    def lines(self) -> list[str]:
        """A sentence for each reason."""
        reasons = {reason: f"{reason} (first: {', '.join(places)})" for reason, places in self.places.items()}
        return [
            *(
                f"{count} of {self.total} samples left out: {reasons[reason]}"
                for reason, count in self.dropped.items()
            ),
            *(
                f"{count} of {self.total} samples cut: {reasons[reason]}"
                for reason, count in self.cut.items()
            ),
        ]

    def ignored_keys(self) -> str:
        """A sentence on the metadata keys, which are ignored on purpose; empty when no record has a metadata key."""
        if not self.ignored:
            return ""
        counts = ", ".join(f"{key} ({count} records)" for key, count in sorted(self.ignored.items()))
        return f"metadata keys, which are ignored on purpose: {counts}"

    def _count(self, reasons: Counter, place: str, reason: str) -> None:
        reasons[reason] += 1
        self.places.setdefault(reason, [])
        if len(self.places[reason]) < EXAMPLES:
            self.places[reason].append(place)


class SampleRow(NamedTuple):
    """A row of a sample, token by token."""

    name: str
    """The row's part in the sample, such as `chosen`."""
    tokens: list[int]
    learnt: list[bool]
    """Whether each token counts in the loss."""


@dataclass(frozen=True)
class SFTSample:
    """An SFT sample: the token ids of prompt and answer, and the tokens in the loss."""

    tokens: list[int]
    """BOS token if the tokenizer has one, input, output, stop token."""
    answer_start: int
    """Index of the output's first token."""
    others: tuple[tuple[int, int], ...] = ()
    """[from, to) of other roles' turns after answer_start, which do not count in the loss."""
    cut: str | None = None
    """Why tokens of the input were left out; None for a whole input."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the model computes for the sample."""
        return len(self.tokens)

    @property
    def learnt(self) -> list[bool]:
        """Whether each token counts in the loss: True for the tokens of the answers and for their stop tokens."""
        learnt = _from(self.answer_start, self.tokens)
        for start, end in self.others:
            learnt[start:end] = [False] * (end - start)
        return learnt

    def shown(self) -> list[SampleRow]:
        """The sample's only row."""
        return [SampleRow("sample", self.tokens, self.learnt)]


@dataclass(frozen=True)
class PairSample:
    """A preference pair for the reward model: token ids of two texts with the same prompt."""

    chosen: list[int]
    """Prompt, better response, stop token."""
    rejected: list[int]
    """The same prompt, worse response, stop token."""

    def __len__(self) -> int:
        return max(len(self.chosen), len(self.rejected))

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the model computes for the pair: the tokens of both texts."""
        return len(self.chosen) + len(self.rejected)

    def shown(self) -> list[SampleRow]:
        """Both texts. Only the reward at the last token of each text counts in the loss."""
        rows = {"chosen": self.chosen, "rejected": self.rejected}
        return [SampleRow(name, tokens, _from(len(tokens) - 1, tokens)) for name, tokens in rows.items()]


@dataclass(frozen=True)
class PreferenceSample(PairSample):
    """A preference pair for a policy. Only the responses count in the loss."""

    chosen_start: int
    """Index of the better response's first token."""
    rejected_start: int
    """Index of the worse response's first token."""
    reference_logprobs: tuple[float, float] | None = None
    """The reference's log-probabilities of both responses, in nats, if known."""

    @property
    def rows(self) -> tuple[list[int], list[int]]:
        """Token ids of the chosen and of the rejected text."""
        return self.chosen, self.rejected

    @property
    def starts(self) -> tuple[int, int]:
        """Indices of the first tokens of both responses."""
        return self.chosen_start, self.rejected_start

    def shown(self) -> list[SampleRow]:
        """Both texts. The loss covers both responses, and makes the chosen response likelier than the rejected response."""
        return [
            SampleRow("chosen", self.chosen, _from(self.chosen_start, self.chosen)),
            SampleRow("rejected", self.rejected, _from(self.rejected_start, self.rejected)),
        ]


@dataclass(frozen=True)
class LabelledSample:
    """A sample for KTO: a prompt with a labelled response, and the same prompt with a response to another prompt."""

    desirable: bool
    rows: tuple[list[int], list[int]]
    """Prompt, response, stop token; and the same prompt with the unrelated response."""
    starts: tuple[int, int]
    """Indices of the responses' first tokens."""
    reference_logprobs: tuple[float, float] | None = None
    """The reference's log-probabilities of both responses, in nats, if known."""

    def __len__(self) -> int:
        return max(map(len, self.rows))

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the model computes for the sample: the tokens of both rows."""
        return sum(map(len, self.rows))

    def shown(self) -> list[SampleRow]:
        """The row of the labelled response. The unrelated response does not count in the loss."""
        return [
            SampleRow(
                "desirable" if self.desirable else "undesirable",
                self.rows[0],
                _from(self.starts[0], self.rows[0]),
            )
        ]


@dataclass(frozen=True)
class PromptSample:
    """A prompt for PPO, as token ids and as text."""

    tokens: list[int]
    text: str

    def __len__(self) -> int:
        return len(self.tokens)

    def shown(self) -> list[SampleRow]:
        """The prompt. None of its tokens count in the loss."""
        return [SampleRow("prompt", self.tokens, [False] * len(self.tokens))]


def content_hash(sample: SFTSample | PairSample | LabelledSample | PromptSample) -> bytes:
    """A hash of the token ids in a sample's rows, 16 bytes."""
    rows = [(row.name, row.tokens) for row in sample.shown()]
    return blake2b(repr(rows).encode(), digest_size=16).digest()


def _from(start: int, tokens: list[int]) -> list[bool]:
    return [i >= start for i in range(len(tokens))]
