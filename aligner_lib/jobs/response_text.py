"""The text of a response while its tokens come, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from aligner_lib.datasets.tokenizer import REPLACEMENT, Tokenizer

LONGEST_CHARACTER = 4  # bytes, each of which may be a token


class ResponseText:
    """Takes tokens, and gives the text that is certain: complete characters, and none that may begin a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), strip: bool = False):
        """stop: what ends the text, and is not in it. strip: leave out the space that it begins with."""
        self._tokenizer, self._stop = tokenizer, stop
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
        searched = len(self.text)
        self.text += piece
        found = [
            (at, stop)
            for stop in self._stop
            if (at := self.text.find(stop, max(0, searched - len(stop) + 1))) >= 0
        ]
        if found and not self.stopped:
            self.text, self.stopped = self.text[: min(found)[0]], True

    def _held(self) -> int:
        """The length of the end that a stop string may begin with."""
        lengths = range(1, max(map(len, self._stop), default=0))
        return max(
            (n for n in lengths if any(stop.startswith(self.text[-n:]) for stop in self._stop)), default=0
        )

    def _give(self, end: int) -> str:
        given, self._given = self.text[self._given : end], max(self._given, end)
        return given
