"""The exercises of notebook 04: the pairwise loss, two poolings of hidden states, and a search that fools a judge."""

from __future__ import annotations

import operator
import random
from itertools import pairwise

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")
preference = ImportedLate("aligner_lib.algorithms.preference")

# ---- bradley_terry --------------------------------------------------------------------------------------------------


def _bradley_terry(chosen, rejected):
    return preference.preference_loss(chosen, rejected)


def _loss(margin):
    return -torch.nn.functional.logsigmoid(margin)


def _rewards(draw: Draw) -> dict:
    """The rewards of some pairs. The last pair has a margin of −1000, for which a naive log(sigmoid) is −inf."""
    pairs = draw.one_of((4, 5, 6))
    chosen, rejected = draw.normal(pairs, scale=2.0), draw.normal(pairs, scale=2.0)
    chosen[0] = rejected[0]
    chosen[-1] = rejected[-1] - 1000.0
    return {"chosen": chosen, "rejected": rejected}


BRADLEY_TERRY = Exercise(
    name="bradley_terry",
    notebook="04",
    title="the loss of each pair",
    minutes=8,
    difficulty=2,
    hint="`torch.nn.functional.logsigmoid` computes the log of a sigmoid without the sigmoid itself. The sigmoid is "
    "exactly 0 for margins below about −89, and the log of 0 is infinite. Each pair has its own loss, so do not "
    "average.",
    reference=_bradley_terry,
    library="aligner_lib.algorithms.preference.preference_loss",
    trains=("rm", "loss"),
    inputs=_rewards,
    outputs=("loss",),
    gradients=("chosen", "rejected"),
    mistakes=(
        Mistake(
            "sign_of_the_margin",
            "The rejected answer gets the higher reward: the margin must be the chosen reward minus the rejected "
            "reward.",
            lambda chosen, rejected: _loss(rejected - chosen),
        ),
        Mistake(
            "sign_of_the_loss",
            "The minus is missing: minimising this value prefers the rejected answers.",
            lambda chosen, rejected: -_loss(chosen - rejected),
        ),
        Mistake(
            "no_log",
            "This is the probability of being wrong. The loss is minus the log of the probability of being right.",
            lambda chosen, rejected: 1 - torch.sigmoid(chosen - rejected),
        ),
        Mistake(
            "log_of_zero",
            "The loss is right for rewards that are near each other, but fails for rewards that are far apart. "
            "There, an intermediate result leaves the range of float32: the sigmoid becomes exactly 0, so its log "
            "is infinite, or exp(−margin) becomes infinite. The gradient is then NaN. `logsigmoid` avoids both.",
            lambda chosen, rejected: -torch.log(torch.sigmoid(chosen - rejected)),
        ),
        Mistake(
            "sum_of_rewards",
            "This takes the sigmoid of the sum of the rewards, so both rewards grow together and their difference "
            "has no effect.",
            lambda chosen, rejected: _loss(chosen + rejected),
        ),
        Mistake(
            "each_by_itself",
            "Each reward goes through its own sigmoid, so adding 5 to both rewards changes the loss. Only the "
            "difference of the rewards may change the loss.",
            lambda chosen, rejected: _loss(chosen) + _loss(-rejected),
        ),
        Mistake(
            "averaged",
            "The result is averaged over the pairs. Return one loss for each pair.",
            lambda chosen, rejected: _loss(chosen - rejected).mean(),
        ),
        Mistake(
            "rejected_detached",
            "The value is right, but no gradient reaches the rejected answer, so the model does not learn from "
            "half of each pair.",
            lambda chosen, rejected: _loss(chosen - rejected.detach()),
        ),
    ),
)

# ---- last_and_mean --------------------------------------------------------------------------------------------------


def _at(hidden, places):
    return hidden[torch.arange(len(hidden)), places]


def _average(hidden, lengths):
    counts = torch.arange(hidden.shape[1])[None] < lengths[:, None]
    return (hidden * counts[..., None]).sum(1) / lengths[:, None]


def _states(draw: Draw) -> dict:
    """Hidden states. Every third batch has a single row."""
    rows, size = draw.in_turn((3, 4, 1)), draw.one_of((6, 7))
    return {"hidden": draw.normal(rows, size, draw.one_of((3, 4))), "lengths": draw.lengths(rows, size)[1]}


LAST_AND_MEAN = Exercise(
    name="last_and_mean",
    notebook="04",
    title="two ways to turn a text into one vector",
    minutes=10,
    difficulty=2,
    hint="Rows are padded on the right, so the last token of row $b$ is `hidden[b, lengths[b] - 1]`. With "
    "`torch.arange(len(hidden))` as the first index you get all rows at once. For the mean, multiply by a mask of "
    "shape `[B, S, 1]`, and divide by the number of tokens.",
    reference=lambda hidden, lengths: (_at(hidden, lengths - 1), _average(hidden, lengths)),
    inputs=_states,
    outputs=("last", "mean"),
    gradients=("hidden",),
    mistakes=(
        Mistake(
            "last_column",
            "The last column is padding in all rows except the longest, so `hidden[:, -1]` reads padding.",
            lambda hidden, lengths: (hidden[:, -1], _average(hidden, lengths)),
        ),
        Mistake(
            "one_behind_the_last",
            "`lengths` is the first position after the text, because counting begins at 0. The last token is at "
            "`lengths - 1`.",
            lambda hidden, lengths: (
                _at(hidden, lengths.clamp(max=hidden.shape[1] - 1)),
                _average(hidden, lengths),
            ),
        ),
        Mistake(
            "first_token",
            "This takes the first token, which has seen no other token. Under a causal mask only the last token "
            "has seen the whole text.",
            lambda hidden, lengths: (hidden[:, 0], _average(hidden, lengths)),
        ),
        Mistake(
            "squeezed",
            "`squeeze()` without a dimension removes every dimension of size 1, so a batch of one row loses its rows. Name "
            "the dimension: `squeeze(1)`.",
            lambda hidden, lengths: (_at(hidden, lengths - 1).squeeze(), _average(hidden, lengths)),
        ),
        Mistake(
            "padding_in_the_mean",
            "The mean runs over all columns, padding included.",
            lambda hidden, lengths: (_at(hidden, lengths - 1), hidden.mean(1)),
        ),
        Mistake(
            "divided_by_the_rectangle",
            "Padding is masked, but the sum is divided by the number of all columns, so short texts get small "
            "features.",
            lambda hidden, lengths: (
                _at(hidden, lengths - 1),
                _average(hidden, lengths) * lengths[:, None] / hidden.shape[1],
            ),
        ),
        Mistake(
            "last_token_left_out",
            "The mean leaves out the last token.",
            lambda hidden, lengths: (_at(hidden, lengths - 1), _average(hidden, lengths - 1)),
        ),
        Mistake(
            "over_the_features",
            "The mean runs over the features (the last dimension). It must run over the tokens.",
            lambda hidden, lengths: (_at(hidden, lengths - 1), hidden.mean(-1)),
        ),
    ),
)

# ---- fool -----------------------------------------------------------------------------------------------------------


class WordJudge:
    """A random judge. The score is the sum of the values of all words and all pairs of adjacent words, minus a price per word.

    filler: a word whose value is exactly the price, so that the word never changes the score.
    """

    def __init__(self, seed: int, price: float, filler: str = ""):
        self.seed, self.price, self.filler = seed, price, filler

    def worth(self, *words: str) -> float:
        if words[-1] == self.filler:
            return self.price if len(words) == 1 else 0.0
        return random.Random(f"{self.seed} {words}").gauss(0.0, 1.0)

    def __call__(self, answer: str) -> float:
        words = answer.split()
        pairs = sum(self.worth(*pair) for pair in pairwise(words))
        return round(sum(map(self.worth, words)) + pairs - self.price * len(words), 6)

    def __repr__(self) -> str:
        return f"WordJudge(seed={self.seed}, price={self.price}, filler={self.filler!r})"


def _fool(score, answer, words, rounds, stops=operator.le, join="{} {}".format, pick=max):
    for _ in range(rounds):
        candidates = [join(answer, word) for word in words]
        best = pick(candidates, key=score)
        if stops(score(best), score(answer)):
            break
        answer = best
    return answer


def _first_better(score, answer, words, rounds):
    for _ in range(rounds):
        better = [f"{answer} {word}" for word in words if score(f"{answer} {word}") > score(answer)]
        if not better:
            break
        answer = better[0]
    return answer


def _words_alone(score, answer, words, rounds):
    for _ in range(rounds):
        best = f"{answer} {max(words, key=score)}"
        if score(best) <= score(answer):
            break
        answer = best
    return answer


def _from_the_start(score, answer, words, rounds):
    return _fool(score, answer, words, 1)


def _best_of_all_that_were_tried(score, answer, words, rounds):
    return max(
        [answer, *(" ".join([answer, word] + [word] * (rounds - 1)) for word in words)],
        key=score,
    )


def _repeats_one_word(cases: list[dict], outputs: list[tuple]) -> bool:
    """Whether every returned answer adds at most one distinct word, and some answer adds the word at least twice."""
    added = []
    for case, returned in zip(cases, outputs):
        text = returned[0] if len(returned) == 1 else None
        if not isinstance(text, str) or not text.startswith(case["answer"]):
            return False
        added.append(text.removeprefix(case["answer"]).split())
    return all(len(set(words)) <= 1 for words in added) and any(len(words) > 1 for words in added)


def _search(draw: Draw) -> dict:
    """With the higher price per word, many searches end early. With the lower price, a word can be worth repeating."""
    words = "sure great thanks you indeed honestly please ok".split()
    draw.random.shuffle(words)
    seed = draw.random.randint(0, 10**6)
    return {
        "score": WordJudge(seed, draw.in_turn((1.6, 1.0)), draw.in_turn((words[-1], "", "", ""))),
        "answer": draw.one_of(("I can't say", "It depends on you", "No")),
        "words": words,
        "rounds": draw.one_of((3, 4, 6)),
    }


FOOL = Exercise(
    name="fool",
    notebook="04",
    title="a worse answer with a higher reward",
    minutes=12,
    difficulty=3,
    hint="In each round, append every word to the current answer, and keep the candidate with the highest score: "
    "`max(candidates, key=score)`. Stop if the best candidate scores no higher than the current answer.",
    reference=_fool,
    inputs=_search,
    outputs=("answer",),
    # the judges are random: with fewer cases, a wrong function passes every case for one seed in a few hundred
    cases=20,
    mistakes=(
        Mistake(
            "never_stops",
            "A word is added in every round, even if every word lowers the score.",
            lambda score, answer, words, rounds: _fool(
                score, answer, words, rounds, stops=lambda best, now: False
            ),
        ),
        Mistake(
            "goes_on_at_ties",
            "The search adds a word that leaves the score as it was. The answer becomes longer and no better: stop when the "
            "best candidate scores *no higher* than the current answer.",
            lambda score, answer, words, rounds: _fool(score, answer, words, rounds, stops=operator.lt),
        ),
        Mistake(
            "first_that_is_better",
            "The search takes the first word that raises the score. It should take the word that raises the score "
            "most.",
            _first_better,
        ),
        Mistake(
            "words_alone",
            "The words are scored on their own. The score of a word depends on the answer before it, so score the "
            "whole candidate.",
            _words_alone,
        ),
        Mistake(
            "one_round",
            "Each round starts again from the first answer, so all added words except the last are lost.",
            _from_the_start,
        ),
        Mistake(
            "lowest",
            "The search takes the word with the lowest score.",
            lambda score, answer, words, rounds: _fool(score, answer, words, rounds, pick=min),
        ),
        Mistake(
            "in_front",
            "The word is put before the answer. It belongs after the answer.",
            lambda score, answer, words, rounds: _fool(
                score, answer, words, rounds, join=lambda text, word: f"{word} {text}"
            ),
        ),
        Mistake(
            "one_word_repeated",
            "The same word is added again and again. The score of a word depends on the answer before it, so each "
            "round has to try all words again, behind the current answer.",
            _best_of_all_that_were_tried,
            seen_in=_repeats_one_word,
        ),
    ),
)

EXERCISES = (BRADLEY_TERRY, LAST_AND_MEAN, FOOL)
