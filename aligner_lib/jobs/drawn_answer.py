"""A model's answer with what its text does not say: whether it ended by itself, and the tokens that were drawn."""

from __future__ import annotations

from collections.abc import Sequence


class DrawnAnswer(str):
    """The text of an answer, to be used as any other text.

    finished: by a stop token or an end string; False where the answer was cut off at its maximal length. tokens: its token
    ids, the stop token included where one was drawn; empty where a server told the text alone. tokenizer: the hash of the
    tokenizer that the ids are of.
    """

    finished: bool
    tokens: tuple[int, ...]
    tokenizer: str

    def __new__(cls, text: str, finished: bool, tokens: Sequence[int] = (), tokenizer: str = ""):
        answer = super().__new__(cls, text)
        answer.finished, answer.tokens, answer.tokenizer = finished, tuple(tokens), tokenizer
        return answer
