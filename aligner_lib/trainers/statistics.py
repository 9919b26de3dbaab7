"""Statistics over all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from aligner_lib.megatron import parallel


def mean_std(values: Tensor) -> tuple[float, float]:
    """Mean and uncorrected standard deviation over all ranks."""
    values = values.double()
    count, total = parallel.sum_over_dp(
        torch.tensor([values.numel(), values.sum()], dtype=torch.float64)
    ).tolist()
    mean = total / max(count, 1.0)
    squares = parallel.sum_over_dp(((values - mean) ** 2).sum()).item()
    return mean, (squares / max(count, 1.0)) ** 0.5
