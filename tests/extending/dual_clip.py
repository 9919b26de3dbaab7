"""Another clipping: dual-clip PPO also bounds the loss of tokens with a negative advantage.

Source: Ye et al. 2020 (arXiv:1912.09729), equation 5.
"""

import torch

BOUND = 3.0  # the paper's c


def loss(ratio, advantages, low, high):
    """The loss of each token, and the clipped ratio; for shapes see `clipped_surrogate`."""
    clipped = ratio.clamp(1 - low, 1 + high)
    pessimistic = torch.maximum(-advantages * ratio, -advantages * clipped)
    bounded = torch.minimum(pessimistic, -BOUND * advantages)
    return torch.where(advantages < 0, bounded, pessimistic), clipped
