"""Intervals and win rates by hand, and against a policy whose only virtue is its length."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from aligner_lib.tutorial.comparison.statistics import (
    area_under_curve,
    cohens_kappa,
    compare,
    distinct_n,
    gain_in_parts,
    length_controlled_win_rate,
    mean_interval,
    share,
    share_gain,
    t_quantile,
    win_rate,
)
from benchmarks import coverage


def test_ties_are_half_a_win():
    wins = compare([1.0, 2.0, 3.0], [0.0, 2.0, 4.0])
    assert wins == [1.0, 0.5, 0.0]
    assert win_rate(wins, [0, 1, 2]).value == 0.5
    with pytest.raises(ValueError):
        compare([1.0], [])


def test_an_interval_of_four_values_is_student_s_with_hc3_residuals():
    """Mean 2.5; residuals −1.5, −0.5, 0.5, 1.5 over 1 − 1/4: a standard error of √(20/9/4) = 0.7454, and 3.182 of these."""
    half = 3.182446 * math.sqrt(20 / 9 / 4)
    for times in (1, 10):  # ten equal answers to a prompt say no more than one
        estimate = mean_interval([1.0, 2.0, 3.0, 4.0] * times, [0, 1, 2, 3] * times)
        assert estimate == pytest.approx((2.5, 2.5 - half, 2.5 + half), abs=1e-5)


def test_quantiles_of_t_are_those_of_the_tables():
    for freedom, quantile in ((1, 12.7062), (2, 4.30265), (3, 3.18245), (31, 2.03951), (1000, 1.96234)):
        assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_one_prompt_has_no_interval_and_no_answers_are_refused():
    with pytest.raises(ValueError, match="no answers"):
        mean_interval([], [])
    estimate = mean_interval([1.0, 2.0], [0, 0])
    assert estimate.value == 1.5 and math.isnan(estimate.low) and math.isnan(estimate.high)
    assert str(estimate) == "1.5 (interval not identifiable)"


def test_a_share_s_interval_is_that_of_newcombe_s_examples():
    """Newcombe 1998, table I, method 4."""
    for right, of, low, high in ((81, 263, 0.2535, 0.3682), (15, 148, 0.0598, 0.1644), (0, 20, 0.0, 0.2005)):
        estimate = share([1.0] * right + [0.0] * (of - right), range(of))
        assert estimate == pytest.approx((right / of, low, high), abs=6e-5)


@pytest.mark.parametrize("answers", [1, 4])
def test_one_more_right_answer_never_lowers_an_end_of_the_interval(answers):
    prompts = np.arange(32).repeat(answers)
    count = 32 * answers
    ends = [share([1.0] * right + [0.0] * (count - right), prompts) for right in range(count + 1)]
    assert all(b.high >= a.high - 0.01 and b.low >= a.low - 0.01 for a, b in pairwise(ends))
    assert ends[0].high < ends[1].high and ends[-2].low < ends[-1].low


def test_answers_that_differ_within_prompts_count_more_than_one_a_prompt():
    wins, prompts = [1.0, 0.0, 0.0, 1.0] * 16, np.arange(16).repeat(4)
    alike = [1.0] * 32 + [0.0] * 32
    narrow, wide = share(wins, prompts), share(alike, prompts)
    assert narrow.value == wide.value == 0.5
    assert narrow.high - narrow.low < 0.7 * (wide.high - wide.low)
    once = share([1.0, 0.0] * 8, range(16))
    assert (wide.low, wide.high) == pytest.approx((once.low, once.high))


def test_a_paired_gain_is_bonett_and_price_s_and_four_wins_of_four_leave_an_interval():
    # 3 of 10 prompts better, 1 worse: p = 4/12 and 2/12 with one more of each, so the middle is 2/12 and the variance 0.0394.
    estimate = share_gain([1.0] * 3 + [-1.0] + [0.0] * 6, range(10))
    half = t_quantile(11) * math.sqrt((4 / 12 + 2 / 12 - (2 / 12) ** 2) / 12)
    assert estimate == pytest.approx((0.2, 2 / 12 - half, 2 / 12 + half))
    none = share_gain([0.0] * 32, range(32))
    assert none.value == 0 and -0.1 < none.low < 0 < none.high < 0.1
    # 1 gain of 4 answers; sums over sizes of 2: 1/2, 0, 1, −1; their middle 1/8, and the weights 3/2, 1/2, 1, 1
    uneven = share_gain([1.0, 0.0, 0.0, 0.0], [5, 5, 5, 7])
    squares = [(1 / 2 - 3 / 16) ** 2, (1 / 16) ** 2, (7 / 8) ** 2, (9 / 8) ** 2]
    half = t_quantile(3) * math.sqrt(sum(squares) / 4 / 4)
    assert uneven == pytest.approx((0.25, max(1 / 8 - half, -1), min(1 / 8 + half, 1)))
    many = share_gain([0.0] * 100 + [1.0] * 100, [*range(100), *[100] * 100])
    assert many.low < many.value < many.high
    estimate = win_rate([1.0] * 4, range(4))
    assert estimate.value == estimate.high == 1.0 and 0.3 < estimate.low < 0.5
    assert win_rate([0.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3]).high == pytest.approx(1 - estimate.low)


@pytest.mark.parametrize("draw", coverage.ROWS, ids=lambda draw: draw.__doc__.splitlines()[0])
def test_intervals_of_32_prompts_hold_the_truth_as_often_as_they_say(draw):
    """150 draws with a seed: the true coverage of 0.92 gives 0.86 or less in one of 200 such tests."""
    held, identified = coverage.coverage(draw, 32, 150)
    assert held > 0.86 and identified > 0.9


def test_the_win_rate_at_equal_length_is_the_win_rate_without_the_share_of_length():
    controlled = length_controlled_win_rate([1.0, 1.0, 1.0, 0.0] * 25, [0.0] * 100, range(100))
    assert controlled.value == pytest.approx(0.75, abs=0.002)  # the ridge moves it by 0.001
    # Three times out of four the policy's answer is the longer one, and the longer answer wins with 0.8.
    rng = np.random.default_rng(2)
    differences = np.where(rng.random(2000) < 0.75, 1.0, -1.0) * rng.uniform(20, 40, 2000)
    wins = (rng.random(2000) < np.where(differences > 0, 0.8, 0.2)).astype(float)
    assert win_rate(wins, range(2000)).value == pytest.approx(0.65, abs=0.03)
    controlled = length_controlled_win_rate(wins, differences, range(2000))
    assert controlled.value == pytest.approx(0.5, abs=0.04)
    assert controlled.low < 0.5 < controlled.high


@pytest.mark.parametrize(
    ("wins", "differences"),
    [
        ([1.0] * 32, [-3.0, 3.0] * 16),  # one winner
        ([1.0] * 16 + [0.0] * 16, [5.0] * 16 + [-5.0] * 16),  # the longer one wins
        ([1.0, 0.0] * 16, [3.0, 5.0, 9.0, 7.0] * 8),  # never of one length
        ([1.0, 0.0, 1.0], [1.0, 2.0, -3.0]),  # too few
    ],
)
def test_a_win_rate_at_equal_length_that_the_data_do_not_show_is_not_identifiable(wins, differences):
    controlled = length_controlled_win_rate(wins, differences, range(len(wins)))
    assert math.isnan(controlled.value) and str(controlled) == "not identifiable"


def test_distinct_n_is_the_share_of_different_sequences_of_words():
    assert distinct_n(["a b a b"], 1) == 0.5
    assert distinct_n(["a b a b"], 2) == pytest.approx(2 / 3), "ab, ba, ab"
    assert (distinct_n(["A b", "a B"], 2), distinct_n(["a", ""], 2)) == (0.5, 0)


def test_a_gain_in_parts_by_hand():
    """Before: a cut answer is worth 0, a wrong one 1, a right one 2; after, all end and half of them are right."""
    rewards = [[0, 0, 1, 2], [1, 1, 2, 3]]
    ended = [[False, False, True, True], [True] * 4]
    right = [[False, False, False, True], [False, False, True, True]]
    by_ending, by_gold, rest = gain_in_parts(rewards, ended, right)
    assert by_ending == (1 - 0.5) * (1.5 - 0)  # half more end, and ending was worth 1.5
    assert by_gold == 0  # half of those that end are right, as before
    assert rest == 1.75 - 0.75 - by_ending
    all_right = gain_in_parts(rewards, ended, [right[0], [True] * 4])
    assert all_right[1] == 1 * (1 - 0.5) * (2 - 1)
    assert sum(all_right) == 1
    assert gain_in_parts([[1, 1], [2, 2]], [[True, True]] * 2, [[False, False], [True, True]]) == (0, 0, 1)


def test_the_area_under_the_curve_is_the_share_of_pairs_in_the_right_order():
    """Yes: 3, 1 and 2. No: 2 and 0. Of the six pairs, four are right, one is wrong, and one is a tie."""
    scores, labels = [3, 2, 1, 0, 2], [1, 0, 1, 0, 1]
    area = area_under_curve(scores, labels, range(5))
    assert area.value == pytest.approx((4 + 0.5) / 6) and area.low < 0.5 < area.high < 1
    constant = area_under_curve([7] * 5, labels, range(5))
    assert constant.value == 0.5 and constant.high - 0.5 == pytest.approx(0.5 - constant.low)
    for size in (2, 20):  # pairs in the right order; more of them say more
        separated = area_under_curve(range(2 * size), [0] * size + [1] * size, range(2 * size))
        assert separated == pytest.approx((1, {2: 0.148, 20: 0.827}[size], 1), abs=1e-3)
    assert math.isnan(area_under_curve(scores, [1] * 5, range(5)).value)


def test_cohens_kappa_of_a_table_by_hand():
    """Of 50 pairs, 20 are yes by both, 15 no by both: observed 0.7, expected 0.5 * 0.6 + 0.5 * 0.4 = 0.5."""
    verdicts, labels = [1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    kappa = cohens_kappa(verdicts, labels, range(50))
    assert kappa.value == pytest.approx(0.4)
    # Fleiss, Cohen and Everitt 1969: the large-sample standard error of this table is 0.1270
    assert (kappa.high - kappa.low) / 2 == pytest.approx(0.1270 * 2.01, rel=0.05)
    constant, same = (cohens_kappa(judge, labels, range(50)) for judge in ([0] * 50, labels))
    assert constant.value == 0 and constant.low < 0 < constant.high, "a constant agrees by chance"
    assert 0.8 < same.low < same.high == 1
    assert math.isnan(cohens_kappa([1, 1], [1, 1], [0, 1]).value)
    pair = cohens_kappa(verdicts * 2, labels * 2, [*range(50), *range(50)])
    assert (pair.low, pair.high) == pytest.approx((kappa.low, kappa.high)), "a repeated answer is no evidence"
