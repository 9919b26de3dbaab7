"""The accuracy of simple rules on preference pairs. A useful reward model must be more accurate than these baselines.

A pair is (prompt, chosen, rejected). A rule gives each answer a score. The rule is right if the chosen answer has the higher
score, and half right if both answers have the same score.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aligner_lib.datasets.comparisons import read_pairs

Score = Callable[[str, str], float]  # arguments: prompt, answer


class TextPair(NamedTuple):
    """A prompt and two answers as texts."""

    prompt: str
    chosen: str
    rejected: str


def text_pairs(comparisons: Path) -> list[TextPair]:
    """The pairs of a comparisons file. Raises what `read_pairs` raises."""
    return [TextPair(**pair) for pair in read_pairs(comparisons)]


def accuracy(score: Score, pairs: Iterable[TextPair]) -> float:
    """The share of pairs whose chosen answer has the higher score. A tie counts half."""
    differences = [score(pair.prompt, pair.chosen) - score(pair.prompt, pair.rejected) for pair in pairs]
    return sum((d > 0) + 0.5 * (d == 0) for d in differences) / len(differences)


def best_rules(train: list[TextPair], held_out: list[TextPair]) -> dict[str, float]:
    """Each rule's accuracy on held-out pairs. The training pairs decide whether a high or a low score means "chosen"."""
    return {name: accuracy(_turned(score, train), held_out) for name, score in rules(train).items()}


def rules(train: list[TextPair]) -> dict[str, Score]:
    """The rules by name; naive Bayes learns from the training pairs."""
    return {
        "naive Bayes on the answer's words": naive_bayes(train),
        "length of the answer": lambda prompt, answer: len(answer),
        "overlap with the question": _overlap,
        "the answer ends": lambda prompt, answer: float(answer.rstrip().endswith((".", "!", "?", '"'))),
    }


@dataclass(frozen=True)
class NaiveBayes:
    """Naive Bayes: log P(token | chosen) − log P(token | rejected), summed over the distinct tokens of an answer."""

    weights: dict[str, float]

    def __call__(self, prompt: str, answer: str) -> float:
        # not `sum`, whose rounding depends on the set's order, which differs between processes
        return math.fsum(self.weights.get(token, 0.0) for token in _tokens(answer))


def naive_bayes(train: list[TextPair]) -> NaiveBayes:
    """Naive Bayes with the token counts of the training pairs.

    A count is the number of chosen (or rejected) answers that contain the token, plus 1.
    """
    chosen = Counter(token for pair in train for token in _tokens(pair.chosen))
    rejected = Counter(token for pair in train for token in _tokens(pair.rejected))
    return NaiveBayes(
        {token: math.log((chosen[token] + 1) / (rejected[token] + 1)) for token in chosen | rejected}
    )


def _turned(score: Score, train: list[TextPair]) -> Score:
    if accuracy(score, train) >= 0.5:
        return score
    return lambda prompt, answer: -score(prompt, answer)


def _tokens(text: str) -> set[str]:
    """The distinct words and punctuation marks of a text, in lower case."""
    return set(re.findall(r"\w+|[^\w\s]", text.lower()))


def _overlap(prompt: str, answer: str) -> float:
    """The share of an answer's words that also occur in the prompt."""
    words, prompt_words = re.findall(r"\w+", answer.lower()), _tokens(prompt)
    return sum(word in prompt_words for word in words) / max(len(words), 1)
