"""A model's answer with facts beyond its text: whether the model ended the answer, and the sampled tokens.

This module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence


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


def answers_of(answer: Callable[[str], str], texts: Sequence[str]) -> list[str]:
    """A model's answers to several texts, in order.

    answer: `jobs.inference.answering`, which generates the answers at the same time, or any function of a text, which is called
    for each text.
    """
    together = getattr(answer, "of_all", None)
    return together(texts) if together else [answer(text) for text in texts]
