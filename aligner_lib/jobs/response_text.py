"""The text of a response while its tokens come, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aligner_lib.datasets.tokenizer import REPLACEMENT, Tokenizer

LONGEST_CHARACTER = 4  # bytes, each of which may be a token


class StopString:
    """Finds the first place of a text in one that grows, in time linear in both.

    Source: Knuth, Morris and Pratt 1977, Fast Pattern Matching in Strings.
    """

    def __init__(self, text: str):
        self.text = text
        self.matched = 0  # characters at the end of what was read that the text begins with
        self._fallbacks = _fallbacks(text)

    def read(self, piece: str) -> int | None:
        """How many characters of a piece are read when the text is complete; None where it does not end in it."""
        for count, character in enumerate(piece, 1):
            while self.matched and self.text[self.matched] != character:
                self.matched = self._fallbacks[self.matched - 1]
            self.matched += self.text[self.matched] == character
            if self.matched == len(self.text):
                return count
        return None


@lru_cache(maxsize=64)
def _fallbacks(text: str) -> tuple[int, ...]:
    """Of each beginning of a text: the length of its longest end, not all of it, that the text begins with."""
    lengths = [0]
    for character in text[1:]:
        length = lengths[-1]
        while length and text[length] != character:
            length = lengths[length - 1]
        lengths.append(length + (text[length] == character))
    return tuple(lengths)


class ResponseText:
    """Takes tokens, and gives the text that is certain: complete characters, and none that may begin a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), strip: bool = False):
        """stop: what ends the text, and is not in it. strip: leave out the space that it begins with."""
        self._tokenizer, self._stop = tokenizer, [StopString(text) for text in stop]
        self._strip = strip
        self._pending: list[int] = []  # tokens of a character that is not complete
        self.text = ""
        self.stopped = False  # at a stop string
        self._given = 0

    def add(self, token: int) -> str:
        """The text that is certain now, and was not before."""
        self._pending.append(token)
        piece = self._tokenizer.decode(self._pending, continues=True)
        if piece.endswith(REPLACEMENT) and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._take(piece)
        return self._give(len(self.text) if self.stopped else len(self.text) - self._held())

    def end(self) -> str:
        """The rest of it, when no more tokens come."""
        if self._pending:
            self._take(self._tokenizer.decode(self._pending, continues=True))
        return self._give(len(self.text))

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
        """The length of the end that a stop string may begin with."""
        return max((stop.matched for stop in self._stop), default=0)

    def _give(self, end: int) -> str:
        given, self._given = self.text[self._given : end], max(self._given, end)
        return given
