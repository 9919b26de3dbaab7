"""Supervised fine-tuning: the mask of the predictions in the loss, and the loss of each prediction.

B samples, S longest sample, T predictions in the loss, in row order
"""

from __future__ import annotations

from torch import Tensor


def loss_mask(learnt: Tensor) -> Tensor:
    """The mask of the predictions in the loss: bool [B, S-1], where index i belongs to the prediction of token i+1.

    learnt: bool [B, S], True at the tokens of answers and at their stop tokens, False at padding.
    """
    return learnt[:, 1:]


def token_losses(logprobs: Tensor) -> Tensor:
    """The cross-entropy of each prediction, −log p in nats: float [T].

    logprobs: float [T], log p of the tokens in the loss. A step's loss is the mean of these losses over the global batch, for
    any split into micro batches.
    """
    return -logprobs
