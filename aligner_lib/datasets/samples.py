"""Samples as token ids, which of their tokens are learnt, and a count of those that were dropped or cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

EXAMPLES = 3  # places (FILE:LINE) shown for each reason


@dataclass
class LoadReport:
    """How many samples of a data set were dropped, and how many cut, by reason, with the first places of each."""

    total: int = 0  # samples seen, the dropped ones included
    dropped: Counter = field(default_factory=Counter)
    cut: Counter = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    ignored: Counter = field(default_factory=Counter)  # records by a key of metadata that they have

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

    def ignored_keys(self) -> str:
        """One sentence on the keys that are ignored on purpose; empty where no record has one."""
        if not self.ignored:
            return ""
        counts = ", ".join(f"{key} ({count} records)" for key, count in sorted(self.ignored.items()))
        return f"keys of metadata, which are ignored on purpose: {counts}"

    def _count(self, reasons: Counter, place: str, reason: str) -> None:
        reasons[reason] += 1
        self.places.setdefault(reason, [])
        if len(self.places[reason]) < EXAMPLES:
            self.places[reason].append(place)


class Row(NamedTuple):
    """One row of a sample, token by token."""

    name: str  # what it is in the sample, such as `chosen`
    tokens: list[int]
    learnt: list[bool]  # of each token, whether it counts in the loss


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

    @property
    def learnt(self) -> list[bool]:
        """Of each token, whether it counts in the loss: those of the answers, and their stop tokens."""
        learnt = _from(self.answer_start, self.tokens)
        for start, end in self.others:
            learnt[start:end] = [False] * (end - start)
        return learnt

    def shown(self) -> list[Row]:
        """The sample, and what is learnt of it."""
        return [Row("sample", self.tokens, self.learnt)]


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

    def shown(self) -> list[Row]:
        """Both texts; the reward is read at the last token of each, and there alone."""
        rows = {"chosen": self.chosen, "rejected": self.rejected}
        return [Row(name, tokens, _from(len(tokens) - 1, tokens)) for name, tokens in rows.items()]


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

    def shown(self) -> list[Row]:
        """Both texts: their responses are learnt, the one as it should be, the other as it should not."""
        return [
            Row("chosen", self.chosen, _from(self.chosen_start, self.chosen)),
            Row("rejected", self.rejected, _from(self.rejected_start, self.rejected)),
        ]


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

    def shown(self) -> list[Row]:
        """The labelled response; the one beside it is not learnt."""
        return [
            Row(
                "desirable" if self.desirable else "undesirable",
                self.rows[0],
                _from(self.starts[0], self.rows[0]),
            )
        ]


@dataclass(frozen=True)
class PromptSample:
    """One prompt for PPO, as token ids and as text."""

    tokens: list[int]
    text: str

    def __len__(self) -> int:
        return len(self.tokens)

    def shown(self) -> list[Row]:
        """The prompt, of which nothing is learnt."""
        return [Row("prompt", self.tokens, [False] * len(self.tokens))]


def _from(start: int, tokens: list[int]) -> list[bool]:
    return [i >= start for i in range(len(tokens))]
