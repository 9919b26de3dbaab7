"""The text of a response, up to a stop string, while the tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aligner_lib.datasets.tokenizer import REPLACEMENT, Tokenizer

LONGEST_CHARACTER = 4  # in bytes, each of which may be a token


class StopString:
    """Finds the first occurrence of a stop string in a growing text, in time linear in both lengths.

    Source: Knuth, Morris and Pratt 1977, Fast Pattern Matching in Strings.
    """

    def __init__(self, text: str):
        self.text = text
        self.matched = 0  # length of the longest prefix of the stop string at the end of the text so far
        self._fallbacks = _fallbacks(text)

    def read(self, piece: str) -> int | None:
        """The number of characters of `piece` up to the end of the first occurrence; None if no occurrence ends in `piece`."""
        for count, character in enumerate(piece, 1):
            while self.matched and self.text[self.matched] != character:
                self.matched = self._fallbacks[self.matched - 1]
            self.matched += self.text[self.matched] == character
            if self.matched == len(self.text):
                return count
        return None


@lru_cache(maxsize=64)
def _fallbacks(text: str) -> tuple[int, ...]:
    """For each prefix of a text, the length of the longest proper suffix of the prefix that is also a prefix of the text."""
    lengths = [0]
    for character in text[1:]:
        length = lengths[-1]
        while length and text[length] != character:
            length = lengths[length - 1]
        lengths.append(length + (text[length] == character))
    return tuple(lengths)


class ResponseText:
    """Takes tokens and returns the certain text: complete characters that can't be the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), strip: bool = False):
        """stop: strings that end the text and are removed from its end. strip: remove the space at the beginning."""
        self._tokenizer, self._stop = tokenizer, [StopString(text) for text in stop]
        self._strip = strip
        self._pending: list[int] = []  # tokens of an incomplete character
        self.text = ""
        self.stopped = False  # by a stop string
        self._returned = 0  # number of characters

    def add(self, token: int) -> str:
        """Add a token. Return the text that has become certain."""
        self._pending.append(token)
        piece = self._tokenizer.decode(self._pending, continues=True)
        if piece.endswith(REPLACEMENT) and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._take(piece)
        return self._next(len(self.text) if self.stopped else len(self.text) - self._held())

    def end(self) -> str:
        """Return the rest of the text after the last token."""
        if self._pending:
            self._take(self._tokenizer.decode(self._pending, continues=True))
        return self._next(len(self.text))

    def _take(self, piece: str) -> None:
        self._pending = []
        if self._strip and not self.text:
            piece = piece.lstrip()
        if self.stopped:
            return
        before = len(self.text)
        self.text += piece
        begins = [
            before + read - len(stop.text) for stop in self._stop if (read := stop.read(piece)) is not None
        ]
        if begins:
            self.text, self.stopped = self.text[: min(begins)], True

    def _held(self) -> int:
        """The length of the text's end that may be the beginning of a stop string."""
        return max((stop.matched for stop in self._stop), default=0)

    def _next(self, end: int) -> str:
        text, self._returned = self.text[self._returned : end], max(self._returned, end)
        return text
