"""The exercises of notebook 13: the AUC of a judge, Cohen's kappa, and a comparison in both orders."""

from __future__ import annotations

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")

# ---- auc ------------------------------------------------------------------------------------------------------------


def _auc(scores, labels, tie=0.5):
    good, bad = scores[labels][:, None], scores[~labels][None]
    return ((good > bad) + tie * (good == bad)).float().mean()


def _scores(draw: Draw) -> dict:
    """Scores with ties between good and bad answers, and an unequal number of both."""
    good, bad = draw.one_of((4, 5)), draw.one_of((6, 7))
    labels = torch.tensor([True] * good + [False] * bad)
    scores = (labels + 1.5 * draw.normal(good + bad)).round() / 2
    scores[0], scores[1] = scores[good], scores[good + 1] + 1.5
    order = torch.argsort(draw.normal(good + bad))
    return {"scores": scores[order] * draw.in_turn((1.0, 0.1)), "labels": labels[order]}


AUC = Exercise(
    name="auc",
    notebook="13",
    title="how well scores rank",
    minutes=8,
    difficulty=2,
    hint="`scores[labels]` are the scores of the good answers, `scores[~labels]` those of the others. `good[:, None] > bad[None]` "
    "compares each good answer with each other answer. A tie counts half.",
    reference=_auc,
    inputs=_scores,
    outputs=("auc",),
    mistakes=(
        Mistake(
            "ties_are_losses",
            "A tie counts as a loss, so a judge that gives every answer the same score would have 0 instead of 0.5.",
            lambda scores, labels: _auc(scores, labels, tie=0.0),
        ),
        Mistake(
            "ties_are_wins",
            "A tie counts as a win, so a judge that gives every answer the same score would have 1 instead of 0.5.",
            lambda scores, labels: _auc(scores, labels, tie=1.0),
        ),
        Mistake(
            "others_first",
            "This is the share of pairs in which the bad answer has the higher score.",
            lambda scores, labels: _auc(-scores, labels),
        ),
        Mistake(
            "accuracy_at_a_threshold",
            "The scores are cut at their mean, and the agreement is counted. The AUC compares pairs and needs no threshold.",
            lambda scores, labels: ((scores > scores.mean()) == labels).float().mean(),
        ),
        Mistake(
            "difference_of_means",
            "This is the difference of the mean scores. It changes with the scale of the scores, and the AUC does not.",
            lambda scores, labels: scores[labels].mean() - scores[~labels].mean(),
        ),
        Mistake(
            "all_pairs",
            "The mean is over all pairs of answers. Only pairs of a good and a bad answer count.",
            lambda scores, labels: (
                ((scores[:, None] > scores) + 0.5 * (scores[:, None] == scores)) * (labels[:, None] & ~labels)
            ).mean(),
        ),
        Mistake(
            "against_the_mean",
            "Each good answer is compared with the mean of the bad answers, which counts no pairs.",
            lambda scores, labels: (scores[labels] > scores[~labels].mean()).float().mean(),
        ),
    ),
)

# ---- kappa ----------------------------------------------------------------------------------------------------------


def _by_independence(verdicts, labels):
    yes, good = verdicts.float().mean(), labels.float().mean()
    return yes * good + (1 - yes) * (1 - good)


def _kappa(verdicts, labels, expected=_by_independence, scale=lambda o, e: (o - e) / (1 - e)):
    observed, by_chance = (verdicts == labels).float().mean(), expected(verdicts, labels)
    return torch.as_tensor(by_chance), scale(observed, by_chance)


def _same_shares(verdicts, labels):
    share = (verdicts.float().mean() + labels.float().mean()) / 2
    return share**2 + (1 - share) ** 2


def _verdicts(draw: Draw) -> dict:
    """Verdicts that agree with most labels, with another share of yes than the labels."""
    count = draw.one_of((14, 16))
    labels = torch.tensor([True, True, True] + [False] * (count - 3))[torch.argsort(draw.normal(count))]
    flips = draw.normal(count) > draw.in_turn((0.2, 0.9))
    verdicts = labels ^ flips
    verdicts[:3] = torch.tensor([True, True, False])
    return {"verdicts": verdicts, "labels": labels}


KAPPA = Exercise(
    name="kappa",
    notebook="13",
    title="agreement beyond chance",
    minutes=10,
    difficulty=2,
    hint="Let the judge say yes with the share $y$, and the reader with the share $g$. If the two are independent, both say yes with "
    "the probability $yg$, and both say no with the probability $(1-y)(1-g)$. The sum is the agreement by chance.",
    reference=_kappa,
    inputs=_verdicts,
    outputs=("expected", "kappa"),
    mistakes=(
        Mistake(
            "a_coin",
            "The agreement by chance is taken as 1/2. That holds only if one of the two says yes to half of the answers.",
            lambda verdicts, labels: _kappa(verdicts, labels, lambda v, l: 0.5),
        ),
        Mistake(
            "yes_alone",
            "Only the agreement on yes is expected. Two who both say no agree, too.",
            lambda verdicts, labels: _kappa(
                verdicts, labels, lambda v, l: v.float().mean() * l.float().mean()
            ),
        ),
        Mistake(
            "equal_shares",
            "Judge and reader are given the same share of yes, the mean of both shares. That is Scott's pi. In Cohen's kappa each "
            "keeps the own share.",
            lambda verdicts, labels: _kappa(verdicts, labels, _same_shares),
        ),
        Mistake(
            "of_the_labels",
            "The agreement by chance uses the share of the labels twice. The judge has a share of yes of its own.",
            lambda verdicts, labels: _kappa(verdicts, labels, lambda v, l: _by_independence(l, l)),
        ),
        Mistake(
            "not_divided",
            "The difference is not divided by 1 − expected, so perfect agreement would not be 1.",
            lambda verdicts, labels: _kappa(verdicts, labels, scale=lambda o, e: o - e),
        ),
        Mistake(
            "divided_by_expected",
            "The difference is divided by the expected agreement. Divide by the most that can be gained, 1 − expected.",
            lambda verdicts, labels: _kappa(verdicts, labels, scale=lambda o, e: (o - e) / e),
        ),
        Mistake(
            "accuracy",
            "This is the observed agreement. Subtract the agreement by chance, and divide by 1 − expected.",
            lambda verdicts, labels: _kappa(verdicts, labels, scale=lambda o, e: o),
        ),
    ),
)

# ---- both_orders ----------------------------------------------------------------------------------------------------


def _win(first, second):
    return (first + 1 - second) / 2


def _sways(first, second):
    return (first - 0.5) * (second - 0.5) > 0


def _both(first, second, win=_win, sways=_sways):
    return win(first, second), sways(first, second).float().mean()


def _orders(draw: Draw) -> dict:
    """The probabilities of a judge that prefers the first place, in both orders, with swayed and unswayed pairs."""
    count = draw.one_of((7, 9))
    preference, place = 1.5 * draw.normal(count), 0.4 + 0.3 * draw.normal(count)
    # two pairs have a probability of exactly 0.5, in both orders and in the second order
    preference[:5] = torch.tensor([0.1, 1.5, 0.1, 0.0, 0.6])
    place[:5] = torch.tensor([0.8, 0.2, -0.8, 0.0, 0.6])
    return {"first": torch.sigmoid(preference + place), "second": torch.sigmoid(place - preference)}


BOTH_ORDERS = Exercise(
    name="both_orders",
    notebook="13",
    title="a preference without a place",
    minutes=9,
    difficulty=3,
    hint="`second` is the probability that the judge prefers the *other* answer, because the other answer then stands in the first "
    "place. So 1 − `second` is the win in the second order. A pair is decided by the order if the same place wins twice: both "
    "probabilities are above 0.5, or both are below.",
    reference=_both,
    inputs=_orders,
    outputs=("wins", "swayed"),
    mistakes=(
        Mistake(
            "one_order",
            "Only the first order counts, so the preference for a place stays in the wins.",
            lambda first, second: _both(first, second, win=lambda first, second: first),
        ),
        Mistake(
            "not_turned_around",
            "In the second order, the other answer stands in the first place. Take 1 − second before the mean.",
            lambda first, second: _both(first, second, win=lambda first, second: (first + second) / 2),
        ),
        Mistake(
            "the_other_wins",
            "These are the wins of the other answer.",
            lambda first, second: _both(first, second, win=lambda first, second: 1 - _win(first, second)),
        ),
        Mistake(
            "the_sum",
            "The two wins are added. Take their mean, so that two equal answers have 0.5.",
            lambda first, second: _both(first, second, win=lambda first, second: first + 1 - second),
        ),
        Mistake(
            "probabilities_thrown_away",
            "The wins are rounded to 0 or 1 before the mean. The probabilities say how sure the judge is.",
            lambda first, second: _both(
                first,
                second,
                win=lambda first, second: ((first > 0.5).float() + (second < 0.5).float()) / 2,
            ),
        ),
        Mistake(
            "steady_pairs",
            "This is the share of pairs whose verdict stays the same in both orders. Swayed pairs are the others.",
            lambda first, second: _both(first, second, sways=lambda first, second: ~_sways(first, second)),
        ),
        Mistake(
            "first_place_alone",
            "Only pairs in which the first place wins twice count. A judge can also prefer the second place.",
            lambda first, second: _both(
                first, second, sways=lambda first, second: (first > 0.5) & (second > 0.5)
            ),
        ),
        Mistake(
            "half_counts_as_below",
            "A pair with a probability of exactly one half counts as swayed. A probability of exactly one half prefers no place.",
            lambda first, second: _both(
                first, second, sways=lambda first, second: (first > 0.5) == (second > 0.5)
            ),
        ),
        Mistake(
            "number_of_pairs",
            "This is the number of swayed pairs. Divide by the number of pairs.",
            lambda first, second: (_win(first, second), _sways(first, second).float().sum()),
        ),
    ),
)

EXERCISES = (KAPPA, AUC, BOTH_ORDERS)
