"""The exercises of notebook 08: best-of-n, the interval of a win rate, and the parts of a gain."""

from __future__ import annotations

from math import log, sqrt

from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")
statistics = ImportedLate("aligner_lib.tutorial.comparison.statistics")

# ---- best_of_n ------------------------------------------------------------------------------------------------------


def _bound(n):
    return log(n) - (n - 1) / n


def _best_of_n(proxy, gold, n, choose=lambda proxy, gold: proxy.argmax(1), bound=_bound):
    proxy, gold = proxy[:, :n], gold[:, :n]
    rows, best = torch.arange(len(proxy)), choose(proxy, gold)
    return proxy[rows, best].mean(), gold[rows, best].mean(), bound(n)


def _judged_twice(draw: Draw) -> dict:
    prompts, drawn = draw.one_of((3, 4)), 6
    gold = draw.normal(prompts, drawn)
    return {"proxy": gold + draw.normal(prompts, drawn), "gold": gold, "n": draw.in_turn((2, 4, 3, 5))}


BEST_OF_N = Exercise(
    name="best_of_n",
    notebook="08",
    title="the best of n, and how far it has moved",
    minutes=9,
    difficulty=2,
    hint="Take the first n columns of both score tables. `proxy.argmax(1)` is the index of the response with the "
    "highest proxy score. Use the gold score of the *same* response. The bound needs parentheses: log n − (n − "
    "1)/n.",
    reference=_best_of_n,
    inputs=_judged_twice,
    outputs=("proxy", "gold", "kl"),
    mistakes=(
        Mistake(
            "gold_chooses",
            "The gold score chooses the response. At the time of choosing only the proxy score is known. The gold "
            "score measures the choice afterwards.",
            lambda proxy, gold, n: _best_of_n(proxy, gold, n, lambda proxy, gold: gold.argmax(1)),
        ),
        Mistake(
            "each_its_own_best",
            "Proxy and gold each use their own best response. Use the gold score of the response that the proxy "
            "has chosen.",
            lambda proxy, gold, n: (
                proxy[:, :n].amax(1).mean(),
                gold[:, :n].amax(1).mean(),
                _bound(n),
            ),
        ),
        Mistake(
            "best_of_all",
            "All responses take part. Only the first n responses should.",
            lambda proxy, gold, n: (*_best_of_n(proxy, gold, proxy.shape[1])[:2], _bound(n)),
        ),
        Mistake(
            "mean_of_n",
            "No response is chosen: these are means over the n responses.",
            lambda proxy, gold, n: (proxy[:, :n].mean(), gold[:, :n].mean(), _bound(n)),
        ),
        Mistake(
            "worst_of_n",
            "The response with the lowest proxy score is taken.",
            lambda proxy, gold, n: _best_of_n(proxy, gold, n, lambda proxy, gold: proxy.argmin(1)),
        ),
        Mistake(
            "log_n_alone",
            "The bound is log n alone: (n − 1)/n is missing, or `//` rounds it down to 0. At n = 2 the bound is log 2 − 1/2.",
            lambda proxy, gold, n: _best_of_n(proxy, gold, n, bound=log),
        ),
        Mistake(
            "bracket_missing",
            "Parentheses are missing in the bound: n − 1/n in place of (n − 1)/n.",
            lambda proxy, gold, n: _best_of_n(proxy, gold, n, bound=lambda n: log(n) - (n - 1 / n)),
        ),
        Mistake(
            "one_prompt_for_all",
            "A single best response is chosen over all prompts. Each prompt has its own best response.",
            lambda proxy, gold, n: (
                proxy[:, :n].max(),
                gold[:, :n].flatten()[proxy[:, :n].flatten().argmax()],
                _bound(n),
            ),
        ),
        Mistake(
            "parentheses_missing",
            "The parentheses of (n − 1) are missing in the bound, so n and 1/n are subtracted.",
            lambda proxy, gold, n: _best_of_n(proxy, gold, n, bound=lambda n: log(n) - n - 1 / n),
        ),
        Mistake(
            "columns_of_all_rows",
            "`proxy[:, best]` takes the chosen columns in every row, so a prompt also gets the answers chosen for other "
            "prompts. Pair each row with its own column: `proxy[rows, best]`.",
            lambda proxy, gold, n: (
                proxy[:, proxy[:, :n].argmax(1)].mean(),
                gold[:, proxy[:, :n].argmax(1)].mean(),
                _bound(n),
            ),
        ),
    ),
)

# ---- win_rate_interval -------------------------------------------------------------------------------------------------------


def _wins(own, others, tie=0.5):
    return (own > others).float() + tie * (own == others)


def _interval(shares, width=1.96, error=lambda shares: shares.std() / sqrt(len(shares))):
    rate, error = shares.mean(), error(shares)
    return rate, rate - width * error, rate + width * error


def _of_prompts(own, others, **changes):
    return _interval(_wins(own, others).mean(1), **changes)


def _scores(draw: Draw) -> dict:
    """Scores of two policies, correlated within a prompt, and rounded, so that ties occur.

    In every third case, one policy wins all prompts but one, so the interval extends beyond 1.
    """
    prompts, answers = draw.one_of((6, 8)), draw.one_of((3, 4))
    suits = 2 * draw.normal(prompts, 1)
    own, others = draw.normal(prompts, answers) + suits, draw.normal(prompts, answers)
    own, others = (2 * own).round() / 2, (2 * others).round() / 2
    own[0, 0], own[0, 1], own[1, 0] = others[0, 0], others[0, 1] + 1.0, others[1, 0] - 1.0
    if draw.in_turn((False, False, True)):
        own = others + 1.0
        own[-1] -= 2.0
    return {"own": own, "others": others}


def _of_a_coin(own, others):
    rate = _wins(own, others).mean()
    error = (rate * (1 - rate) / len(own)).sqrt()
    return rate, rate - 1.96 * error, rate + 1.96 * error


WIN_RATE_INTERVAL = Exercise(
    name="win_rate_interval",
    notebook="08",
    title="a win rate, and how certain it is",
    minutes=12,
    difficulty=3,
    hint="First compute a number for each prompt: the mean of 1 (won), 0.5 (tie) and 0 (lost) over its answers. Several "
    "answers to the same prompt are not independent evidence, so count prompts and not answers. The standard error "
    "is the deviation of these numbers, `std()`, divided by the square root of the number of prompts.",
    reference=_of_prompts,
    inputs=_scores,
    outputs=("rate", "low", "high"),
    mistakes=(
        Mistake(
            "answers_as_evidence",
            "Each answer is counted like a prompt of its own, so the interval is too narrow. It becomes even "
            "narrower with more answers to each prompt.",
            lambda own, others: _interval(_wins(own, others).flatten()),
        ),
        Mistake(
            "ties_are_losses",
            "A tie counts as a loss, so two equal policies would each win less than half.",
            lambda own, others: _interval(_wins(own, others, tie=0.0).mean(1)),
        ),
        Mistake(
            "ties_are_wins",
            "A tie counts as a win, so two equal policies would each win more than half.",
            lambda own, others: _interval(_wins(own, others, tie=1.0).mean(1)),
        ),
        Mistake(
            "one_standard_error",
            "The interval has a width of one standard error, which holds the figure in 68 of 100 draws. For 95 of "
            "100, use 1.96 standard errors.",
            lambda own, others: _of_prompts(own, others, width=1.0),
        ),
        Mistake(
            "deviation_of_a_prompt",
            "This is the spread of a single prompt and not of the mean. Divide by the square root of the number of "
            "prompts.",
            lambda own, others: _of_prompts(own, others, error=lambda shares: shares.std()),
        ),
        Mistake(
            "uncorrected_deviation",
            "The deviation divides by n. With few prompts, dividing by n − 1 makes a difference.",
            lambda own, others: _of_prompts(
                own, others, error=lambda shares: shares.std(correction=0) / sqrt(len(shares))
            ),
        ),
        Mistake(
            "deviation_of_a_coin",
            "The deviation is that of a coin, √(w (1 − w)), as if all answers to a prompt won or lost together. Use the deviation of "
            "the prompts' shares.",
            _of_a_coin,
        ),
        Mistake(
            "cut_at_0_and_1",
            "The ends are cut to the range from 0 to 1, which the formula does not do. An end beyond 1 shows that the formula needs "
            "more prompts.",
            lambda own, others: tuple(end.clamp(0, 1) for end in _of_prompts(own, others)),
        ),
        Mistake(
            "others_win",
            "This is the win rate of the other policy.",
            lambda own, others: _of_prompts(others, own),
        ),
        Mistake(
            "means_compared",
            "The mean scores of each prompt are compared, so the single wins and losses within a prompt are lost.",
            lambda own, others: _interval(_wins(own.mean(1), others.mean(1))),
        ),
        Mistake(
            "no_root",
            "The deviation is divided by the number of prompts. Divide by the square root of the number.",
            lambda own, others: _of_prompts(own, others, error=lambda shares: shares.std() / len(shares)),
        ),
        Mistake(
            "variance_for_deviation",
            "The variance stands in place of the deviation, its square root.",
            lambda own, others: _of_prompts(
                own, others, error=lambda shares: shares.var() / sqrt(len(shares))
            ),
        ),
        Mistake(
            "mean_over_prompts",
            "The mean runs over the prompts, so the deviation is that of the answers' positions. Take the mean over the answers "
            "to a prompt: `mean(dim=1)`.",
            lambda own, others: _interval(_wins(own, others).mean(0)),
        ),
    ),
)

# ---- gain_in_parts --------------------------------------------------------------------------------------------------


def _worth(rewards, ended, right, which=0):
    """The difference in mean reward between ended and cut-off answers, and between right and wrong ended answers.

    which: before (0) or after (1) training.
    """
    paid, ends, rights = rewards[which], ended[which], right[which]
    of_ending = paid[ends].mean() - paid[~ends].mean()
    return of_ending, paid[ends & rights].mean() - paid[ends & ~rights].mean()


def _worth_of_marks(rewards, ended, right):
    of_ending, _ = _worth(rewards, ended, right)
    return of_ending, rewards[0][right[0]].mean() - rewards[0][~right[0]].mean()


def _worth_pooled(rewards, ended, right):
    """The differences in mean reward, over the answers before and after training."""
    of_ending = rewards[ended].mean() - rewards[~ended].mean()
    return of_ending, rewards[ended & right].mean() - rewards[ended & ~right].mean()


def _right_among_ended(ended, right):
    return (ended & right).sum(1) / ended.sum(1)


def _right_among_all(ended, right):
    return (ended & right).float().mean(1)


def _parts(
    rewards, ended, right, *, worth=_worth, gold=_right_among_ended, weight=lambda before, after: after
):
    """The parts of a gain. weight(share that ended before, share that ended after): the factor of the second part."""
    of_ending, of_being_right = worth(rewards, ended, right)
    share, golden = ended.float().mean(1), gold(ended, right)
    by_ending = (share[1] - share[0]) * of_ending
    by_gold = weight(*share) * (golden[1] - golden[0]) * of_being_right
    return by_ending, by_gold, rewards[1].mean() - rewards[0].mean() - by_ending - by_gold


def _with(**changes):
    """The right function with changed parts."""
    return lambda *inputs: _parts(*inputs, **changes)


def _changed(change):
    """The right parts, changed by change((by_ending, by_gold, rest), number of answers)."""
    return lambda rewards, ended, right: change(*_parts(rewards, ended, right), ended.shape[1])


def _before_and_after(draw: Draw) -> dict:
    """Answers before and after, with at least two of each kind: cut off, ended and wrong, ended and right.

    A cut-off answer may be marked as right, too. A correct function ignores the mark.
    """
    count = draw.one_of((10, 12))
    kinds = torch.stack(
        [
            torch.tensor([0, 0, 1, 1, 2, 2] + [draw.one_of(some) for _ in range(count - 6)])
            for some in ((0, 0, 1), (1, 2, 2))
        ]
    )
    rewards = draw.normal(2, count, scale=0.5) + kinds + torch.tensor([[0.0], [0.4]])
    rewards = rewards * draw.in_turn((1.0, 30.0))
    right = kinds == 2
    right[:, 0] = True
    return {"rewards": rewards, "ended": kinds > 0, "right": right}


GAIN_IN_PARTS = Exercise(
    name="gain_in_parts",
    notebook="08",
    title="the parts of a gain",
    minutes=17,
    difficulty=4,
    hint="Compute four means of `rewards[0]` (before): of the ended and the cut answers, and of the right and the wrong "
    "answers among the ended. The first part is the change of the share that ends, times the reward difference "
    "between ended and cut. The second part is the change of the share that is right among the ended, times the "
    "reward difference between right and wrong, times the share that ends *now*. The rest is the gain minus both "
    "parts.",
    reference=lambda *inputs: tuple(map(torch.tensor, statistics.gain_in_parts(*inputs))),
    library="aligner_lib.tutorial.comparison.statistics.gain_in_parts",
    inputs=_before_and_after,
    outputs=("ended", "gold", "rest"),
    mistakes=(
        Mistake(
            "prices_of_after",
            "The reward differences come from the answers after training. Training may have changed them, so use "
            "the rewards before training.",
            _with(worth=lambda *inputs: _worth(*inputs, which=1)),
        ),
        Mistake(
            "weighed_by_the_old_share",
            "The gold part is multiplied by the share that ended before. Use the share that ends now. Otherwise "
            "the parts overlap, and the rest absorbs the error.",
            _with(weight=lambda before, after: before),
        ),
        Mistake(
            "right_among_all",
            "The share of right answers is taken among all answers. It rises as soon as more answers end, so "
            "ending is counted twice.",
            _with(gold=_right_among_all),
        ),
        Mistake(
            "joint_share",
            "The gold part is the change of the share of right answers among all answers. This share also rises "
            "when more answers end, which the first part has already counted. Take the share among the ended "
            "answers, and multiply by the share that ends now.",
            _with(gold=_right_among_all, weight=lambda before, after: 1.0),
        ),
        Mistake(
            "cut_answers_count",
            "Answers that were cut off count as right, too. Only ended answers can be right.",
            _with(gold=lambda ended, right: right.sum(1) / ended.sum(1)),
        ),
        Mistake(
            "marks_without_ended",
            "Answers that were cut off count as right or wrong, in the shares and in the rewards. Select the ended answers first, and "
            "split only them.",
            _with(worth=_worth_of_marks, gold=lambda ended, right: right.float().mean(1)),
        ),
        Mistake(
            "rest_is_the_gain",
            "The rest is the whole gain. Subtract the two parts.",
            _changed(lambda ended, gold, rest, count: (ended, gold, ended + gold + rest)),
        ),
        Mistake(
            "losses_for_gains",
            "This is before minus after. It should be after minus before.",
            _changed(lambda ended, gold, rest, count: (-ended, -gold, -rest)),
        ),
        Mistake(
            "counts_for_shares",
            "The number of answers that end is used in place of their share.",
            _changed(lambda ended, gold, rest, count: (ended * count, gold, rest - ended * (count - 1))),
        ),
        Mistake(
            "shares_without_prices",
            "These are only the changes of the shares. Multiply each by its reward difference.",
            _with(worth=lambda *inputs: (1.0, 1.0)),
        ),
        Mistake(
            "not_weighed",
            "The gold part is not multiplied by the share that ends now. Only the answers that end can be right.",
            _with(weight=lambda before, after: 1.0),
        ),
        Mistake(
            "rewards_pooled",
            "The reward differences are those of all answers, before and after training. Use the rewards before training alone.",
            _with(worth=_worth_pooled),
        ),
        Mistake(
            "cut_answers_in_the_rewards",
            "The rewards of right and wrong answers include answers that were cut off. Select the ended answers first.",
            _with(worth=_worth_of_marks),
        ),
    ),
)

EXERCISES = (WIN_RATE_INTERVAL, GAIN_IN_PARTS, BEST_OF_N)
