"""Two judges for notebook 12: a judge with holes, and the mended judge.

A judge gets the user's turn, the response, and the fields of the prompt's record. The reward lies between 0 and 1. Imports are
inside the functions, because a job runs only the text of a function.
"""

from __future__ import annotations


def naive(prompt: str, response: str, item: str, **others) -> float:
    """1 if the response contains the requested word or number."""
    return float(item.lower() in response.lower())


def mended(prompt: str, response: str, item: str, question: str, **others) -> float:
    """1 for an answer with own words, on the topic of the question, and with the requested word or number."""
    import re

    def words_of(text):
        return re.findall(r"[a-z0-9']+", text.lower())

    def runs_of(text, length):
        words = words_of(text)
        return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]

    words, pairs = words_of(response), runs_of(response, 2)
    from_request = set(runs_of(response, 3)) & set(runs_of(prompt.replace(question, ""), 3))
    from_question = set(runs_of(response, 3)) & set(runs_of(question, 3))
    topic = {word for word in words_of(question) if len(word) >= 4} & set(words)
    conditions = (
        1 <= words.count(item.lower()) <= 2,
        6 <= len(words) <= 50,
        response.rstrip().endswith((".", "!", "?")),
        len(set(pairs)) > 0.8 * len(pairs),  # does not repeat itself
        len(from_request) <= 1 and len(from_question) <= 5,
        bool(topic),
        "<<" not in response,
    )
    return float(all(conditions))
