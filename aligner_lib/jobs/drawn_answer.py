"""A model's answer with facts beyond its text: whether the model ended the answer, and the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence


class DrawnAnswer(str):
    """The text of an answer, which can be used like any string.

    finished: True if the answer ended with a stop token or an end string; False if the answer was truncated at the maximal
    length. tokens: the answer's token ids, including a sampled stop token; empty if a server sent only the text. tokenizer: the
    hash of the tokenizer that the ids belong to.
    """

    finished: bool
    tokens: tuple[int, ...]
    tokenizer: str

    def __new__(cls, text: str, finished: bool, tokens: Sequence[int] = (), tokenizer: str = ""):
        answer = super().__new__(cls, text)
        answer.finished, answer.tokens, answer.tokenizer = finished, tuple(tokens), tokenizer
        return answer
