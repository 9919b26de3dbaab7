"""Intervals and win rates by hand, and against a policy whose only virtue is its length."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aligner_lib.tutorial.statistics import (
    compare,
    distinct_n,
    gain_in_parts,
    length_controlled_win_rate,
    mean_interval,
    win_rate,
)


def test_interval_is_the_normal_one_for_many_independent_values():
    values = np.random.default_rng(0).normal(2.0, 1.0, 400)
    estimate = mean_interval(values, range(400))
    half = 1.96 * values.std() / math.sqrt(400)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.01)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.01)


def test_answers_to_one_prompt_count_as_one():
    """Each prompt's value ten times: no more is known than from the prompts themselves."""
    once = mean_interval([0.0, 1.0, 1.0, 0.0], [0, 1, 2, 3])
    often = mean_interval([0.0, 1.0, 1.0, 0.0] * 10, [0, 1, 2, 3] * 10)
    assert once == often


def test_interval_covers_the_truth_about_as_often_as_it_says():
    """Two answers a prompt that share the prompt's own mean; naive intervals over 60 answers would cover 83 %."""
    rng, covered = np.random.default_rng(1), 0
    for trial in range(200):
        of_prompt = rng.normal(0, 1, 30).repeat(2)
        estimate = mean_interval(of_prompt + rng.normal(0, 0.2, 60), np.arange(30).repeat(2), seed=trial)
        covered += estimate.low <= 0 <= estimate.high
    assert 0.89 <= covered / 200 <= 0.98


def test_ties_are_half_a_win():
    wins = compare([1.0, 2.0, 3.0], [0.0, 2.0, 4.0])
    assert wins == [1.0, 0.5, 0.0]
    assert win_rate(wins, [0, 1, 2]).value == 0.5
    with pytest.raises(ValueError):
        compare([1.0], [])


def test_four_wins_of_four_are_not_certainty():
    """Wilson's interval of 4 of 4 begins at 4 / (4 + 1.96²)."""
    assert win_rate([1.0] * 4, range(4)) == (1.0, pytest.approx(0.51, abs=0.001), 1.0)
    assert win_rate([0.0] * 8, [0, 0, 1, 1, 2, 2, 3, 3]) == (0.0, 0.0, pytest.approx(0.49, abs=0.001))


def test_equal_lengths_leave_the_win_rate():
    wins, prompts = [1.0, 1.0, 1.0, 0.0] * 25, range(100)
    controlled = length_controlled_win_rate(wins, [0.0] * 100, prompts)
    assert controlled.value == pytest.approx(0.75, abs=0.002)  # the ridge moves it by 0.001
    assert win_rate(wins, prompts).value == 0.75


def test_a_policy_that_wins_by_length_alone_wins_nothing_at_equal_length():
    """It is the longer one three times out of four, and the longer one always wins with 0.8."""
    rng = np.random.default_rng(2)
    differences = np.where(rng.random(2000) < 0.75, 1.0, -1.0) * rng.uniform(20, 40, 2000)
    wins = (rng.random(2000) < np.where(differences > 0, 0.8, 0.2)).astype(float)
    prompts = range(2000)
    assert win_rate(wins, prompts).value == pytest.approx(0.65, abs=0.03)
    controlled = length_controlled_win_rate(wins, differences, prompts)
    assert controlled.value == pytest.approx(0.5, abs=0.04)
    assert controlled.low < 0.5 < controlled.high


def test_one_that_always_wins_has_a_finite_rate():
    controlled = length_controlled_win_rate([1.0] * 20, [3.0] * 20, range(20))
    assert 0.9 < controlled.value <= 1.0 and controlled.high <= 1.0


def test_distinct_n():
    assert distinct_n(["a b a b"], 1) == 0.5
    assert distinct_n(["a b a b"], 2) == pytest.approx(2 / 3)  # ab, ba, ab
    assert distinct_n(["A b", "a B"], 2) == 0.5
    assert distinct_n(["a", ""], 2) == 0.0


def test_no_answers_are_refused():
    with pytest.raises(ValueError, match="no answers"):
        mean_interval([], [])


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
