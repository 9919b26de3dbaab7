"""What widgets/frontend/wire.js does with the points that it has, in Python."""

import numpy as np

from widgets.runs.downsample import _mean, _pick


def fold(points: np.ndarray) -> np.ndarray:
    """Merge pairs of full buckets: points [n, 3] → points of buckets with twice the size. Drops an unpaired last bucket."""
    groups = points[: len(points) // 4 * 4].reshape(-1, 4, 3)
    folded = np.take_along_axis(groups, _pick(groups[:, :, 1])[:, :, None], axis=1)
    folded[:, :, 2] = _mean(groups[:, :, 2])
    return folded.reshape(-1, 3)
