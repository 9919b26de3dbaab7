"""The exercise of notebook 02: naive Bayes as a judge."""

from __future__ import annotations

from collections import Counter
from math import log

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, Mistake

# ---- naive_bayes ----------------------------------------------------------------------------------------------------


def _counted(texts: list[list[str]]) -> Counter:
    return Counter(word for words in texts for word in words)


def _naive_bayes(chosen, rejected, answer, smoothing=1, of_vocabulary=1):
    good, bad = _counted(chosen), _counted(rejected)
    vocabulary = of_vocabulary * len(good.keys() | bad.keys())
    of_good, of_bad = good.total() + vocabulary, bad.total() + vocabulary
    return sum(
        log((good[word] + smoothing) / of_good) - log((bad[word] + smoothing) / of_bad)
        for word in answer
        if word in good or word in bad
    )


def _seen_once(texts: list[list[str]]) -> list[list[str]]:
    return [sorted(set(words)) for words in texts]


def _ratio_of_counts(chosen, rejected, answer):
    good, bad = _counted(chosen), _counted(rejected)
    return sum(log((good[word] + 1) / (bad[word] + 1)) for word in answer if word in good or word in bad)


def _own_vocabularies(chosen, rejected, answer):
    good, bad = _counted(chosen), _counted(rejected)
    return sum(
        log((good[word] + 1) / (good.total() + len(good))) - log((bad[word] + 1) / (bad.total() + len(bad)))
        for word in answer
        if word in good or word in bad
    )


def _without_log(chosen, rejected, answer):
    good, bad = _counted(chosen), _counted(rejected)
    vocabulary = len(good.keys() | bad.keys())
    return sum(
        (good[word] + 1) / (good.total() + vocabulary) - (bad[word] + 1) / (bad.total() + vocabulary)
        for word in answer
        if word in good or word in bad
    )


def _unseen_too(chosen, rejected, answer):
    good, bad = _counted(chosen), _counted(rejected)
    vocabulary = len(good.keys() | bad.keys())
    unseen = [word for word in answer if word not in good and word not in bad]
    each = log(1 / (good.total() + vocabulary)) - log(1 / (bad.total() + vocabulary))
    return _naive_bayes(chosen, rejected, answer) + len(unseen) * each


def _texts(draw: Draw) -> dict:
    """Chosen and rejected texts with common words and words of their own, and an answer with known and unseen words.

    In every second case, the answer is so long that the product of its words' probabilities is 0.
    """
    common = "the a of and to it is".split()
    good, bad = "please thanks first because kindly".split(), "whatever no never stuff".split()

    def text(words: list[str]) -> list[str]:
        return [draw.one_of(words) for _ in range(draw.random.randint(4, 9))]

    chosen = [text(common + good) + ["sure", "sure"] for _ in range(3)]
    rejected = [text(common + bad) for _ in range(draw.one_of((3, 4)))]
    answer = [*text(common), "sure", "sure", draw.one_of(rejected[0]), "zebra", "the"] * draw.in_turn((1, 40))
    return {"chosen": chosen, "rejected": rejected, "answer": answer}


NAIVE_BAYES = Exercise(
    name="naive_bayes",
    notebook="02",
    title="naive Bayes as a judge of answers",
    minutes=12,
    difficulty=2,
    hint="Count words with `collections.Counter`. Let $V$ be the number of different words on both sides together. Then "
    r"$P(w \mid \text{chosen}) = (n_w + 1) / (N + V)$, where $n_w$ counts the word in the chosen texts and $N$ is "
    "the number of words in the chosen texts. Sum the difference of the two logs over the answer's words. Leave "
    "out a word that occurs on neither side, because such a word carries no information.",
    reference=_naive_bayes,
    inputs=_texts,
    outputs=("score",),
    mistakes=(
        Mistake(
            "no_smoothing",
            "The 1 that is added to each count is missing. Without it a word that occurs on only one side has "
            "probability 0 on the other side, and the log of 0 does not exist.",
            lambda chosen, rejected, answer: _naive_bayes(chosen, rejected, answer, 0, 0),
        ),
        Mistake(
            "does_not_add_up",
            "1 is added to each count, but the total does not grow by the number of different words. So the "
            "probabilities of all words add up to more than 1.",
            lambda chosen, rejected, answer: _naive_bayes(chosen, rejected, answer, 1, 0),
        ),
        Mistake(
            "a_vocabulary_for_each_side",
            "Each side's total grows by the number of its own different words. But 1 is added to every word of "
            "both sides, also to words that occur only on the other side. So both totals must grow by V, the "
            "number of different words on both sides together.",
            _own_vocabularies,
        ),
        Mistake(
            "sign",
            "Rejected answers get the higher score. Subtract the log of the rejected side from the log of the "
            "chosen side.",
            lambda chosen, rejected, answer: _naive_bayes(rejected, chosen, answer),
        ),
        Mistake(
            "counts_for_probabilities",
            "Counts are compared in place of probabilities, so the side with more text wins every word.",
            _ratio_of_counts,
        ),
        Mistake(
            "answer_as_a_set",
            "A word that occurs twice in the answer counts only once.",
            lambda chosen, rejected, answer: _naive_bayes(chosen, rejected, sorted(set(answer))),
        ),
        Mistake(
            "texts_as_sets",
            "A word that occurs twice in a training text is counted only once.",
            lambda chosen, rejected, answer: _naive_bayes(_seen_once(chosen), _seen_once(rejected), answer),
        ),
        Mistake(
            "no_log",
            "Probabilities are added. The probabilities of independent words multiply, so their logs add up.",
            _without_log,
        ),
        Mistake(
            "unseen_words_count",
            "A word that occurs in no training text counts in favour of the side with less text. Leave such words "
            "out.",
            _unseen_too,
        ),
    ),
)

EXERCISES = (NAIVE_BAYES,)
