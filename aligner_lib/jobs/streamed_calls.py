"""Separates the tool calls of an answer from its text, while the text arrives."""

from __future__ import annotations

from aligner_lib.datasets.tool_calls import BEGIN, END, CallForm, ToolCall, read_calls


class StreamedCalls:
    """Takes pieces of an answer, and returns the text outside calls and the calls as soon as they are certain.

    A call that cannot be read stays text. An answer in the form `object` is certain only at its end.
    """

    def __init__(self, form: CallForm):
        self._form = form
        self._waiting = ""  # text that may belong to a call
        self._called = False
        self._is_text = False  # in the form `object`: the answer does not begin as a call

    def add(self, piece: str) -> tuple[str, list[ToolCall]]:
        self._waiting += piece
        if self._form == "object":
            self._is_text = self._is_text or self._waiting.lstrip()[:1] not in ("", "{")
            return (self._take(len(self._waiting)) if self._is_text else ""), []
        text, calls = "", []
        while (begin := self._waiting.find(BEGIN)) >= 0 and (end := self._waiting.find(END, begin)) >= 0:
            before, call = self._take(begin), self._take(end + len(END) - begin)
            more, read = self._read(call)
            text += (self._outside(before).rstrip() if read else before) + more
            calls += read
        if begin < 0:
            text += self._outside(self._take(len(self._waiting) - _held(self._waiting)))
        return text, calls

    def end(self) -> tuple[str, list[ToolCall]]:
        """The rest after the last piece."""
        begin = self._waiting.find(BEGIN) if self._form == "tags" else 0  # nothing waits before an object
        before = self._take(len(self._waiting) if begin < 0 else begin)
        text, calls = self._read(self._take(len(self._waiting)))
        return (self._outside(before).rstrip() if calls else before) + text, calls

    def _read(self, text: str) -> tuple[str, list[ToolCall]]:
        """The calls of a text, or the text unchanged if a call cannot be read."""
        calls = [call for call in read_calls(text, self._form)[1] if isinstance(call, ToolCall)]
        self._called = self._called or bool(calls)
        return ("", calls) if calls else (text, [])

    def _outside(self, text: str) -> str:
        """White space beside calls is part of their form."""
        return "" if self._called and not text.strip() else text

    def _take(self, count: int) -> str:
        text, self._waiting = self._waiting[:count], self._waiting[count:]
        return text


def _held(text: str) -> int:
    """The length of the text's end that may be the beginning of a call, with the white space before it."""
    lengths = (length for length in range(len(BEGIN) - 1, 0, -1) if text.endswith(BEGIN[:length]))
    length = next(lengths, 0)
    rest = text[: len(text) - length]
    return length + len(rest) - len(rest.rstrip())
