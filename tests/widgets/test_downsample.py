"""Thinning keeps spikes and stays within its limit; both ends of a wire fold alike."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from wire_js import fold

from widgets.runs.downsample import bucket_size, closed_points, downsample
from widgets.runs.smooth import smooth

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=100)


def test_below_the_limit_every_record_is_a_point():
    points = downsample([0, 1, 2], [5.0, 7.0, 6.0], bucket_size(3, limit=10))
    assert points.tolist() == [[0, 5, 5], [1, 7, 7], [2, 6, 6]]


def test_a_bucket_of_four_keeps_its_lowest_and_highest_in_order_of_time_and_the_last_record():
    points = downsample([0, 1, 2, 4, 5], [1.0, 9.0, 2.0, 0.0, 2.0], size=4)
    assert points.tolist() == [[1, 9, 3], [4, 0, 3], [5, 2, 2], [5, 2, 2], [5, 2, 2]]


@given(values, st.integers(4, 64))
def test_within_the_limit_and_no_spike_lost(y, limit):
    points = downsample(np.arange(len(y)), y, bucket_size(len(y), limit))
    assert len(points) <= limit and points[-1, 0] == len(y) - 1
    assert points[:, 1].max() == max(y) and points[:, 1].min() == min(y)
    assert set(points[:, 1]) <= set(y), "no value was invented"
    assert (np.diff(points[:, 0]) >= 0).all()


@given(values, st.integers(1, 100), st.sampled_from([2, 4, 8]))
def test_closed_points_never_change_and_fold_to_those_of_buckets_of_twice_the_size(y, cut, size):
    x, cut = np.arange(len(y)), min(cut, len(y))
    closed = downsample(x[:cut], y[:cut], size)[: closed_points(cut, size)]
    assert np.array_equal(downsample(x, y, size)[: len(closed)], closed)
    folded = fold(closed)
    expected = downsample(x[:cut], y[:cut], 2 * size)[: len(folded)]
    assert np.allclose(folded, expected, rtol=1e-9, atol=1e-6)


def test_a_bucket_with_a_nan_has_the_mean_of_the_others_and_smoothing_leaves_it_out():
    points = downsample(range(4), [1.0, np.nan, 5.0, 3.0], size=4)
    assert points[:, 2].tolist() == [3, 3, 3]
    raw = downsample(range(3), [1.0, np.nan, 5.0], size=2)
    assert np.array_equal(smooth(raw, 2, 0), [1, np.nan, 5], equal_nan=True)
    calm = smooth(raw, 2, 1 / 3)  # a half-life of one record: (0.5 · 1 + 5) / 1.5
    assert np.array_equal(calm, [1, np.nan, 5.5 / 1.5], equal_nan=True)
