"""The exercise of notebook 02: a judge that counts words."""

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
    """Words that both sides have, some that one side has, and an answer with words that nobody has seen."""
    common = "the a of and to it is".split()
    good, bad = "please thanks first because kindly".split(), "whatever no never stuff".split()

    def text(words: list[str]) -> list[str]:
        return [draw.one_of(words) for _ in range(draw.random.randint(4, 9))]

    chosen = [text(common + good) + ["sure", "sure"] for _ in range(3)]
    rejected = [text(common + bad) for _ in range(draw.one_of((3, 4)))]
    answer = [*text(common), "sure", "sure", draw.one_of(rejected[0]), "zebra", "the"]
    return {"chosen": chosen, "rejected": rejected, "answer": answer}


NAIVE_BAYES = Exercise(
    name="naive_bayes",
    notebook="02",
    title="naive Bayes as a judge of answers",
    minutes=12,
    difficulty=2,
    hint="Count with `collections.Counter`. With $V$ different words on both sides together, "
    r"$P(w \mid \text{chosen}) = (n_w + 1) / (N + V)$, where $n_w$ is how often the word stands in the chosen texts and $N$ "
    "how many words they have. Sum the differences of both logs over the answer's words. A word that neither side has says "
    "nothing, and is left out.",
    reference=_naive_bayes,
    inputs=_texts,
    outputs=("score",),
    mistakes=(
        Mistake(
            "no_smoothing",
            "without the 1 that is added to each count, a word that one side has never used has probability 0, and no log.",
            lambda chosen, rejected, answer: _naive_bayes(chosen, rejected, answer, 0, 0),
        ),
        Mistake(
            "does_not_add_up",
            "1 is added to each count, but the total doesn't grow by the number of different words: the probabilities of all "
            "words add up to more than 1.",
            lambda chosen, rejected, answer: _naive_bayes(chosen, rejected, answer, 1, 0),
        ),
        Mistake(
            "a_vocabulary_for_each_side",
            "each side's total grows by the number of its own different words. But 1 is added to every word of either side, also to "
            "those that this side has never used: both totals grow by V, the different words of both sides together.",
            _own_vocabularies,
        ),
        Mistake(
            "sign",
            "rejected answers get the higher score.",
            lambda chosen, rejected, answer: _naive_bayes(rejected, chosen, answer),
        ),
        Mistake(
            "counts_for_probabilities",
            "counts are compared, not probabilities: the side with more text wins every word.",
            _ratio_of_counts,
        ),
        Mistake(
            "answer_as_a_set",
            "a word that the answer has twice counts once.",
            lambda chosen, rejected, answer: _naive_bayes(chosen, rejected, sorted(set(answer))),
        ),
        Mistake(
            "texts_as_sets",
            "a word that a training text has twice is counted once.",
            lambda chosen, rejected, answer: _naive_bayes(_seen_once(chosen), _seen_once(rejected), answer),
        ),
        Mistake(
            "no_log",
            "probabilities are added up. Those of independent words multiply: it is their logs that add up.",
            _without_log,
        ),
        Mistake(
            "unseen_words_count",
            "a word that nobody has seen counts for the side with less text.",
            _unseen_too,
        ),
    ),
)

EXERCISES = (NAIVE_BAYES,)
