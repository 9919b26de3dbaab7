"""The share of an answer that is copied from its prompt. Copying is the most common way to please a judge without an answer."""

from __future__ import annotations

import re

RUN = 4  # words in a row that count as copied; answers share shorter phrases with their questions by chance
WORD = re.compile(r"\w+")


def copied_share(prompt: str, answer: str) -> float:
    """The share of an answer's words that belong to a run of RUN or more words of the prompt, from 0 to 1.

    Case and punctuation do not count. 0 for an answer without words.
    """
    copied = copied_words(prompt, answer)
    return sum(copied) / len(copied) if copied else 0.0


def copied_words(source: str, text: str, run: int = RUN) -> list[bool]:
    """For each word of a text, whether the word belongs to a run of `run` or more words of the source."""
    source_words, words = WORD.findall(source.lower()), WORD.findall(text.lower())
    phrases = {tuple(source_words[start : start + run]) for start in range(len(source_words) - run + 1)}
    copied = [False] * len(words)
    for start in range(len(words) - run + 1):
        if tuple(words[start : start + run]) in phrases:
            copied[start : start + run] = [True] * run
    return copied
