"""How much of a response is copied from its prompt: the commonest way to please a judge without an answer."""

from __future__ import annotations

import re

RUN = 4  # words in a row that count as copied; an answer shares shorter phrases with its question by chance
WORD = re.compile(r"\w+")


def copied_share(prompt: str, response: str, run: int = RUN) -> float:
    """The share of a response's words that stand in `run` or more words in a row of the prompt, from 0 to 1.

    Case and punctuation do not count. 0 for a response without words.
    """
    source, words = _words(prompt), _words(response)
    phrases = {tuple(source[start : start + run]) for start in range(len(source) - run + 1)}
    copied = set()
    for start in range(len(words) - run + 1):
        if tuple(words[start : start + run]) in phrases:
            copied.update(range(start, start + run))
    return len(copied) / len(words) if words else 0.0


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())
