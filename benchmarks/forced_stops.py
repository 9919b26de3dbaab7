"""Responses of `transformers` that end at given lengths. Aligner Lab sets the same lengths by its sampling settings.

At each step, the logit of a row's stop token is far above all others at the row's last position, and −∞ before.

B rows, V vocabulary, P longest prompt
"""

from __future__ import annotations

import torch
from torch import Tensor

FAR_ABOVE = 1e9  # far above every other logit, so that the stop token is drawn


class StopsAtProcessor:
    """A LogitsProcessor for transformers' `generate`. lengths: of the batch's rows."""

    def __init__(self, lengths: list[int], prompt_width: int, stop_id: int):
        self.lengths = torch.tensor(lengths)
        self.prompt_width = prompt_width
        self.stop_id = stop_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        drawn = input_ids.shape[1] - self.prompt_width + 1
        scores[:, self.stop_id] = torch.where(self.lengths == drawn, FAR_ABOVE, -torch.inf)
        return scores
