"""Smoothing of noisy curves by an exponential moving average with a half-life. monitor/smooth.js has the same function."""

from __future__ import annotations

import numpy as np

from widgets.runs import downsample

DEFAULT = 0.02  # half-life as a fraction of a line's records


def smooth(points: np.ndarray, size: int, fraction: float = DEFAULT) -> np.ndarray:
    """Smoothed y, float64 [n], of points [n, 3] for buckets of `size` records.

    The half-life is a fraction of the line's records, so a run with 20 steps and a run with a million steps look equally
    smooth. The average is bias-corrected: the first smoothed value equals the first point. A NaN remains NaN, and does not
    enter the average.
    """
    records_a_point = 1 if size == downsample.RAW else size / 2
    half_life = fraction * len(points) * records_a_point
    if half_life <= 0:
        return points[:, 2].copy()
    keep = 0.5 ** (records_a_point / half_life)
    total = weight = 0.0
    smoothed = np.empty(len(points))
    for i, value in enumerate(points[:, 2]):
        if np.isnan(value):
            smoothed[i] = value
            continue
        total, weight = keep * total + value, keep * weight + 1
        smoothed[i] = total / weight
    return smoothed
