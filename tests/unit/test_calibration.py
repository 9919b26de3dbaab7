"""Stated and seen confidence of a reward model."""

import math

from pytest import approx

from aligner_lib.tutorial.comparison.calibration import calibration


def test_pairs_stand_in_groups_from_the_least_sure_to_the_surest():
    """σ(ln 3) = 0.75 and σ(ln 9) = 0.9; a margin below 0 is a wrong pair of the same confidence."""
    unsure, sure = math.log(3), math.log(9)
    low, high = calibration([sure, -unsure, sure, unsure, sure, unsure, unsure], groups=2)
    assert (low.stated, low.right.value, low.pairs) == approx((0.75, 3 / 4, 4))
    assert (high.stated, high.right.value, high.pairs) == approx((0.9, 1, 3))
    assert low.right.low < 3 / 4 < low.right.high


def test_fewer_pairs_than_groups_are_groups_of_their_own():
    assert [group.pairs for group in calibration([1.0, -2.0], groups=5)] == [1, 1]
    assert calibration([0.0])[0].right.value == 0.5, "a tie counts half"
