"""Supervised fine-tuning: the mask of the predictions that count, and the loss of each prediction.

B samples, S longest, T predictions that count in the loss, in row order
"""

from __future__ import annotations

from torch import Tensor


def loss_mask(learnt: Tensor, lengths: Tensor) -> Tensor:
    """The predictions that count in the loss: bool [B, S-1], where index i belongs to the prediction of token i+1.

    learnt: bool [B, S], True at the tokens of answers and at their stop tokens; lengths: int64 [B], tokens of each sample.
    """
    return learnt[:, 1:]


def token_losses(logprobs: Tensor) -> Tensor:
    """The cross-entropy of each prediction, −log p in nats: float [T].

    logprobs: float [T], log p of the tokens that count in the loss. The loss of a step is the mean over all such tokens of
    the global batch, however it is split into micro batches.
    """
    return -logprobs
