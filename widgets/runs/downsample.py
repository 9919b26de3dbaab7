"""Reduce a long series to few points without losing a spike: the lowest and highest record of every bucket.

Buckets hold a power of two of records and are counted from the first record. So appending changes only the
last bucket. When a series outgrows its limit, two neighbouring buckets become one; kernel and browser can
each do that alone (`fold`), and only the new end of a series has to be sent.

A point is (x, y, mean), where mean is the bucket's, for smoothing. A y may be NaN, where a record has none: the mean is of
the others. Below the limit each record is a point.
The last point is always the last record.
"""

from __future__ import annotations

import numpy as np

RAW = 2  # in a bucket of two records, the lowest and the highest are the two records themselves


def bucket_size(records: int, limit: int) -> int:
    """The smallest bucket (a power of two) with which `records` give at most `limit` points."""
    size = RAW
    while _points(records, size) > limit:
        size *= 2
    return size


def _points(records: int, size: int) -> int:
    return records if size == RAW else 2 * -(-records // size) + 1


def closed_points(records: int, size: int) -> int:
    """How many points belong to buckets before the last; later records never change these."""
    return max(0, records - 1) // size * 2


def downsample(x: np.ndarray, y: np.ndarray, size: int, start: int = 0) -> np.ndarray:
    """Points float64 [n, 3] of the records from record `start` (a multiple of size) to the end.

    x, y: [records]; size: records in a bucket.
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


def fold(points: np.ndarray) -> np.ndarray:
    """Points [n, 3] of full buckets → points of buckets twice as large; an odd last bucket is left out."""
    groups = points[: len(points) // 4 * 4].reshape(-1, 4, 3)
    chosen = _pick(groups[:, :, 1])
    folded = np.take_along_axis(groups, chosen[:, :, None], axis=1)
    folded[:, :, 2] = _mean(groups[:, :, 2])
    return folded.reshape(-1, 3)


def _extremes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Buckets [n, size] → points [2n, 3]: the lowest and highest record, in order of time."""
    chosen = _pick(y)
    mean = np.broadcast_to(_mean(y), chosen.shape)
    return np.stack(
        [np.take_along_axis(x, chosen, 1), np.take_along_axis(y, chosen, 1), mean], axis=2
    ).reshape(-1, 3)


def _mean(y: np.ndarray) -> np.ndarray:
    """Each row's mean, [n, 1], of its numbers; NaN of a row without one."""
    numbers = ~np.isnan(y)
    if numbers.all():
        return y.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.where(numbers, y, 0).sum(axis=1, keepdims=True) / numbers.sum(axis=1, keepdims=True)


def _pick(y: np.ndarray) -> np.ndarray:
    """The positions of the lowest and highest value of each row, the earlier first: int64 [n, 2]."""
    return np.sort(np.stack([y.argmin(axis=1), y.argmax(axis=1)], axis=1), axis=1)
