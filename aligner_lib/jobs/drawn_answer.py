"""A model's answer with facts that its text does not show: whether it ended by itself, and the tokens that were drawn."""

from __future__ import annotations

from collections.abc import Sequence


class DrawnAnswer(str):
    """The text of an answer, usable as any other text.

    finished: whether a stop token or an end string ended it; False for an answer that was cut off at the maximal length.
    tokens: its token ids, including the stop token if one was drawn; empty when a server sent only the text. tokenizer: the
    hash of the tokenizer to which the ids belong.
    """

    finished: bool
    tokens: tuple[int, ...]
    tokenizer: str

    def __new__(cls, text: str, finished: bool, tokens: Sequence[int] = (), tokenizer: str = ""):
        answer = super().__new__(cls, text)
        answer.finished, answer.tokens, answer.tokenizer = finished, tuple(tokens), tokenizer
        return answer
