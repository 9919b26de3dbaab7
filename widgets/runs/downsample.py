"""Reduce a long series to few points without losing spikes: keep the lowest and the highest record of every bucket.

The number of records in a bucket is a power of two. Buckets are counted from the first record, so new records change only the
last bucket. If a series outgrows its limit, pairs of neighbouring buckets are merged. The browser merges the buckets that it
has (`fold` in wire.js), so the kernel sends only the new end of a series.

A point is (x, y, mean). `mean` is the mean of the bucket, for smoothing. A missing y is NaN, and is excluded from the mean.
Below the limit, each record is a point. The last point is always the last record.
"""

from __future__ import annotations

import numpy as np

RAW = 2  # a bucket of two records loses nothing: the two records are the lowest and the highest


def bucket_size(records: int, limit: int) -> int:
    """The smallest bucket size (a power of two) for which `records` records give at most `limit` points."""
    size = RAW
    while _points(records, size) > limit:
        size *= 2
    return size


def _points(records: int, size: int) -> int:
    return records if size == RAW else 2 * -(-records // size) + 1


def closed_points(records: int, size: int) -> int:
    """The number of points in the buckets before the last bucket. New records never change these points."""
    return max(0, records - 1) // size * 2


def downsample(x: np.ndarray, y: np.ndarray, size: int, start: int = 0) -> np.ndarray:
    """The points of the records from `start` to the end, float64 [n, 3].

    x, y: [records]. size: records per bucket. start: a multiple of size.
    """
    assert start % size == 0, f"record {start} begins no bucket of {size}"
    x, y = np.asarray(x[start:], dtype=float), np.asarray(y[start:], dtype=float)
    if size == RAW:
        return np.stack([x, y, y], axis=1)
    full = len(y) // size * size
    points = [_extremes(x[:full].reshape(-1, size), y[:full].reshape(-1, size))]
    if full < len(y):
        points.append(_extremes(x[None, full:], y[None, full:]))
    if len(y):
        points.append(np.array([[x[-1], y[-1], points[-1][-1, 2]]]))
    return np.concatenate(points)


def interrupted(points: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The points with a point without y before each gap, where a plot then interrupts the line.

    points: [n, 3]. gaps: the x of each gap's first record, ascending, [m]. Returns float64 [n + m, 3].
    """
    missing = np.stack([gaps, *np.full((2, len(gaps)), np.nan)], axis=1)
    return np.insert(points, np.searchsorted(points[:, 0], gaps), missing, axis=0)


def _extremes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Buckets [n, size] → points [2n, 3]: the lowest and the highest record of each bucket, in order of time."""
    chosen = _pick(y)
    mean = np.broadcast_to(_mean(y), chosen.shape)
    return np.stack(
        [np.take_along_axis(x, chosen, 1), np.take_along_axis(y, chosen, 1), mean], axis=2
    ).reshape(-1, 3)


def _mean(y: np.ndarray) -> np.ndarray:
    """The mean of each row without its NaNs, [n, 1]; NaN for a row of NaNs."""
    numbers = ~np.isnan(y)
    if numbers.all():
        return y.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.where(numbers, y, 0).sum(axis=1, keepdims=True) / numbers.sum(axis=1, keepdims=True)


def _pick(y: np.ndarray) -> np.ndarray:
    """The positions of the lowest and the highest value of each row, in ascending order: int64 [n, 2]."""
    return np.sort(np.stack([y.argmin(axis=1), y.argmax(axis=1)], axis=1), axis=1)
