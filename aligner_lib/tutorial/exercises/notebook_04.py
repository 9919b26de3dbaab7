"""The exercises of notebook 04: the loss of pairs, where a reward is read, and a search for its weak side."""

from __future__ import annotations

import random
from itertools import pairwise

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")
preference = ImportedLate("aligner_lib.algorithms.preference")

# ---- bradley_terry --------------------------------------------------------------------------------------------------


def _loss(margin):
    return -torch.nn.functional.logsigmoid(margin)


def _rewards(draw: Draw) -> dict:
    """Of some pairs, the last of them with rewards as far apart as an untamed head gives them."""
    pairs = draw.one_of((4, 5, 6))
    chosen, rejected = draw.normal(pairs, scale=2.0), draw.normal(pairs, scale=2.0)
    chosen[0] = rejected[0]
    chosen[-1] = rejected[-1] - 130.0
    return {"chosen": chosen, "rejected": rejected}


BRADLEY_TERRY = Exercise(
    name="bradley_terry",
    notebook="04",
    title="the loss of each pair",
    minutes=6,
    difficulty=1,
    hint="`torch.nn.functional.logsigmoid` takes the log of a sigmoid without computing the sigmoid, which is exactly 0 for "
    "margins below −104 or so; and the log of 0 is infinite. Each pair has its own loss: don't average.",
    reference=lambda *inputs: preference.preference_loss(*inputs),
    library="aligner_lib.algorithms.preference.preference_loss",
    trains=("rm", "loss"),
    inputs=_rewards,
    outputs=("loss",),
    gradients=("chosen", "rejected"),
    mistakes=(
        Mistake(
            "sign_of_the_margin",
            "the rejected answer gets the higher reward: the margin is chosen less rejected.",
            lambda chosen, rejected: _loss(rejected - chosen),
        ),
        Mistake(
            "sign_of_the_loss",
            "the minus is missing: whoever makes this smaller turns the pairs round.",
            lambda chosen, rejected: -_loss(chosen - rejected),
        ),
        Mistake(
            "no_log",
            "this is the probability of being wrong; the loss is minus the log of the probability of being right.",
            lambda chosen, rejected: 1 - torch.sigmoid(chosen - rejected),
        ),
        Mistake(
            "log_of_zero",
            "right while the rewards are near each other. Far apart, a number on the way is too small or too large for float32: the "
            "sigmoid becomes exactly 0, whose log is infinite, and exp(−margin) becomes infinite itself. The gradient is NaN then. "
            "`logsigmoid` computes the log without either of them.",
            lambda chosen, rejected: -torch.log(torch.sigmoid(chosen - rejected)),
        ),
        Mistake(
            "sum_of_rewards",
            "the sigmoid of the sum: both rewards grow together, and the difference means nothing.",
            lambda chosen, rejected: _loss(chosen + rejected),
        ),
        Mistake(
            "each_by_itself",
            "each reward goes through a sigmoid of its own. Adding 5 to both then changes the loss, which only their "
            "difference may do.",
            lambda chosen, rejected: _loss(chosen) + _loss(-rejected),
        ),
        Mistake(
            "averaged",
            "the pairs are averaged already. What comes back has one loss for each.",
            lambda chosen, rejected: _loss(chosen - rejected).mean(),
        ),
        Mistake(
            "rejected_detached",
            "the value is right, but no gradient reaches the rejected answer: half of the pair teaches nothing.",
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
    rows, size = draw.one_of((2, 3, 4)), draw.one_of((6, 7))
    return {"hidden": draw.normal(rows, size, draw.one_of((3, 4))), "lengths": draw.lengths(rows, size)[1]}


LAST_AND_MEAN = Exercise(
    name="last_and_mean",
    notebook="04",
    title="two ways to make one vector of a text",
    minutes=10,
    difficulty=2,
    hint="Rows are padded on the right, so the last token of row $b$ is `hidden[b, lengths[b] - 1]`: with "
    "`torch.arange(len(hidden))` as the first index all rows go at once. For the mean multiply by a mask of shape "
    "`[B, S, 1]` and divide by the number of tokens.",
    reference=lambda hidden, lengths: (_at(hidden, lengths - 1), _average(hidden, lengths)),
    inputs=_states,
    outputs=("last", "mean"),
    gradients=("hidden",),
    mistakes=(
        Mistake(
            "last_column",
            "the last column is padding in all rows but the longest: `hidden[:, -1]` reads nothing of them.",
            lambda hidden, lengths: (hidden[:, -1], _average(hidden, lengths)),
        ),
        Mistake(
            "one_behind_the_last",
            "`lengths` itself is the first place behind the text: counting begins at 0.",
            lambda hidden, lengths: (
                _at(hidden, lengths.clamp(max=hidden.shape[1] - 1)),
                _average(hidden, lengths),
            ),
        ),
        Mistake(
            "first_token",
            "the first token has seen no other: under a causal mask only the last one has read the whole text.",
            lambda hidden, lengths: (hidden[:, 0], _average(hidden, lengths)),
        ),
        Mistake(
            "padding_in_the_mean",
            "the mean is over all columns, padding included.",
            lambda hidden, lengths: (_at(hidden, lengths - 1), hidden.mean(1)),
        ),
        Mistake(
            "divided_by_the_rectangle",
            "padding is masked, but the sum is divided by all columns: short texts get small features.",
            lambda hidden, lengths: (
                _at(hidden, lengths - 1),
                _average(hidden, lengths) * lengths[:, None] / hidden.shape[1],
            ),
        ),
        Mistake(
            "last_token_left_out",
            "the mean ends one token early.",
            lambda hidden, lengths: (_at(hidden, lengths - 1), _average(hidden, lengths - 1)),
        ),
        Mistake(
            "over_the_features",
            "the mean runs over the features (the last dimension), where it has to run over the tokens.",
            lambda hidden, lengths: (_at(hidden, lengths - 1), hidden.mean(-1)),
        ),
    ),
)

# ---- fool -----------------------------------------------------------------------------------------------------------


class WordJudge:
    """A judge with a taste of its own: each word and each pair of neighbours has a worth, and length a price."""

    def __init__(self, seed: int, price: float):
        self.seed, self.price = seed, price

    def worth(self, *words: str) -> float:
        return random.Random(f"{self.seed} {words}").gauss(0.0, 1.0)

    def __call__(self, answer: str) -> float:
        words = answer.split()
        pairs = sum(self.worth(*pair) for pair in pairwise(words))
        return round(sum(map(self.worth, words)) + pairs - self.price * len(words), 6)

    def __repr__(self) -> str:
        return f"WordJudge(seed={self.seed}, price={self.price})"


def _fool(score, answer, words, rounds, stops=True, join="{} {}".format, pick=max):
    for _ in range(rounds):
        candidates = [join(answer, word) for word in words]
        best = pick(candidates, key=score)
        if stops and score(best) <= score(answer):
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
    """Whether no answer has more than one word added, and some have it twice at least."""
    added = []
    for case, returned in zip(cases, outputs):
        text = returned[0] if len(returned) == 1 else None
        if not isinstance(text, str) or not text.startswith(case["answer"]):
            return False
        added.append(text.removeprefix(case["answer"]).split())
    return all(len(set(words)) <= 1 for words in added) and any(len(words) > 1 for words in added)


def _search(draw: Draw) -> dict:
    """Words cost so much that many searches end early, or less, so that others go on and a word can be worth repeating."""
    words = "sure great thanks you indeed honestly please ok".split()
    draw.random.shuffle(words)
    seed = draw.random.randint(0, 10**6)
    return {
        "score": WordJudge(seed, draw.in_turn((1.6, 1.0))),
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
    hint="In each round try every word behind the answer as it is now, and keep the one with the highest score: "
    "`max(candidates, key=score)`. If even that isn't higher than the score of the answer as it is, you are done.",
    reference=_fool,
    inputs=_search,
    outputs=("answer",),
    cases=20,  # what a judge likes is chance: with fewer, a wrong answer is right everywhere once in a few hundred seeds
    mistakes=(
        Mistake(
            "never_stops",
            "a word is added in every round, also where each of them makes the score lower.",
            lambda score, answer, words, rounds: _fool(score, answer, words, rounds, stops=False),
        ),
        Mistake(
            "first_that_is_better",
            "the first word that raises the score is taken, not the one that raises it most.",
            _first_better,
        ),
        Mistake(
            "words_alone",
            "words are scored by themselves. What a word is worth depends on what it stands behind.",
            _words_alone,
        ),
        Mistake(
            "one_round",
            "each round begins again with the first answer, so all but one word are lost.",
            _from_the_start,
        ),
        Mistake(
            "lowest",
            "the word with the lowest score is taken.",
            lambda score, answer, words, rounds: _fool(score, answer, words, rounds, pick=min),
        ),
        Mistake(
            "in_front",
            "the word is put in front of the answer; it was to stand behind it.",
            lambda score, answer, words, rounds: _fool(
                score, answer, words, rounds, join=lambda text, word: f"{word} {text}"
            ),
        ),
        Mistake(
            "one_word_repeated",
            "one word is added again and again, however it was chosen. What a word is worth depends on what it stands behind, so each "
            "round has to try all of them anew, behind the answer as it is by then.",
            _best_of_all_that_were_tried,
            seen_in=_repeats_one_word,
        ),
    ),
)

EXERCISES = (BRADLEY_TERRY, LAST_AND_MEAN, FOOL)
