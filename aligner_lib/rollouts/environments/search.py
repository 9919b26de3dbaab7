"""Questions whose answers are in the bundled texts, which the policy can search."""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Sequence

from aligner_lib.rollouts.environments.base import Message, Step, hold_out, require
from aligner_lib.rollouts.environments.tools import ToolEnvironment
from data.sources import SAMPLES

TEXTS = SAMPLES / "dolly-sample.jsonl"
CATEGORY = "closed_qa"  # questions with a single answer among the texts
PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


class Search(ToolEnvironment):
    """The questions of category `closed_qa` of the bundled Dolly sample. The function `search` finds its texts.

    The reward is the F1 of the answer's words against the known answer, as in SQuAD: an answer that copies a whole text has all
    words of the known answer and loses precision. turns: the most responses of an episode.
    """

    def __init__(self, split: str = "train", *, results: int = 1, turns: int = 3, held_out: float = 0.2):
        super().__init__(split)
        require(results >= 1, f"results={results}: the value must be at least 1")
        require(turns >= 1, f"turns={turns}: the value must be at least 1")
        records = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
        self.index = BM25(list(dict.fromkeys(record["context"] for record in records if record["context"])))
        questions = [record for record in records if record["category"] == CATEGORY]
        self.records = hold_out(questions, held_out, twins=lambda record: record["instruction"])[split]
        self.size, self.max_turns, self.results = len(self.records), turns, results
        self.tools = (self.search,)

    def search(self, query: str) -> str:
        """
        Finds texts that contain the words of a query.

        Args:
            query: The words to look for.
        """
        return "\n\n".join(self.index.best(query, self.results)) or "nothing found"

    def prompt(self, seed: int) -> list[Message]:
        self.record = self.records[seed % self.size]
        return [{"role": "user", "content": self.record["instruction"]}]

    def judge(self, answer: str) -> Step:
        f1 = word_f1(answer, self.record["response"])
        return Step(f1, metrics={"f1": f1})


class BM25:
    """Ranks texts for a query by BM25. Source: Robertson and Zaragoza 2009, with their usual k1 and b."""

    K1, B = 1.2, 0.75

    def __init__(self, texts: Sequence[str]):
        self.texts = texts
        self.counts = [Counter(words(text)) for text in texts]
        self.lengths = [counts.total() for counts in self.counts]
        self.mean_length = sum(self.lengths) / len(texts)
        self.texts_with = Counter(word for counts in self.counts for word in counts)

    def best(self, query: str, count: int) -> list[str]:
        """The `count` texts with the highest scores, the best first, without texts that have no word of the query."""
        scores = [self._score(set(words(query)), number) for number in range(len(self.texts))]
        ranked = sorted(range(len(scores)), key=lambda number: -scores[number])[:count]
        return [self.texts[number] for number in ranked if scores[number] > 0]

    def _score(self, query: set[str], number: int) -> float:
        counts, length = self.counts[number], self.lengths[number] / self.mean_length
        return sum(
            self._rarity(word)
            * counts[word]
            * (self.K1 + 1)
            / (counts[word] + self.K1 * (1 - self.B + self.B * length))
            for word in query & counts.keys()
        )

    def _rarity(self, word: str) -> float:
        containing = self.texts_with[word]
        return math.log(1 + (len(self.texts) - containing + 0.5) / (containing + 0.5))


def words(text: str) -> list[str]:
    """The words of a text in lower case, without marks."""
    return re.findall(r"\w+", text.lower())


def word_f1(answer: str, known: str) -> float:
    """The harmonic mean of precision and recall of the answer's words. Source: Rajpurkar et al. 2016 (SQuAD)."""
    given, right = Counter(compared_words(answer)), Counter(compared_words(known))
    common = (given & right).total()
    return 2 * common / (given.total() + right.total()) if common else 0.0


def compared_words(text: str) -> list[str]:
    """The words of a text as SQuAD's F1 compares them: in lower case, without punctuation and without articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()
