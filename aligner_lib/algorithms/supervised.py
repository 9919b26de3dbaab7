"""Supervised fine-tuning: which predictions are learnt, and what each costs.

B samples, S longest, T predictions that are learnt, in row order
"""

from __future__ import annotations

from torch import Tensor


def loss_mask(learnt: Tensor, lengths: Tensor) -> Tensor:
    """The predictions that are learnt: bool [B, S-1], where index i belongs to the prediction of token i+1.

    learnt: bool [B, S], True at the tokens of answers and at their stop tokens; lengths: int64 [B], tokens of each sample.
    """
    return learnt[:, 1:]


def token_losses(logprobs: Tensor) -> Tensor:
    """What each prediction costs, its cross-entropy −log p in nats: float [T].

    logprobs: float [T], log p of the tokens that are learnt. The step's loss is the mean over the global batch's tokens,
    whatever its micro batches.
    """
    return -logprobs
