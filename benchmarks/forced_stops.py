"""Responses that end at given lengths, forced in the same way on both sides: real finishes, and equal work.

At each step a row's stop token gets a logit above all others at its last position, and −∞ before it.

    B rows, V vocabulary, P longest prompt
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

FAR_ABOVE = 1e9  # no other logit is near it: the stop token is drawn


def force(logits: Tensor, ends: Tensor, stop_id: int) -> Tensor:
    """logits: float [B, V]; ends: bool [B], rows that end now. In place."""
    logits[:, stop_id] = torch.where(ends, FAR_ABOVE, -torch.inf)
    return logits


class StopsAt(nn.Module):
    """A model as `aligner_lib.megatron.generate` uses it, whose responses have the lengths that are given.

    It follows which rows the batch still holds: at the prompt it knows them by their tokens, and rows that leave are
    those that have reached their length.
    """

    def __init__(self, model: nn.Module, prompts: list[list[int]], lengths: list[int], stop_id: int):
        super().__init__()
        self.model = model
        self.stop_id = stop_id
        self._length_of = {tuple(prompt): length for prompt, length in zip(prompts, lengths)}
        assert len(self._length_of) == len(prompts), "equal prompts can't be told apart"

    def forward(self, tokens: Tensor, cache) -> Tensor:
        if cache.sequence_len_offset == 0:
            rows = [row[seen].tolist() for row, seen in zip(tokens, cache.visible[:, : tokens.shape[1]])]
            self._lengths = torch.tensor([self._length_of[tuple(row)] for row in rows])
            self._drawn = 0
        elif len(tokens) < len(self._lengths):
            self._lengths = self._lengths[self._lengths > self._drawn]
        assert len(tokens) == len(self._lengths), "the batch holds other rows than those that are running"
        return self.model(tokens, cache=cache)

    def logits(self, hidden: Tensor) -> Tensor:
        self._drawn += 1
        return force(self.model.logits(hidden), self._lengths == self._drawn, self.stop_id)


class StopsAtProcessor:
    """The same for transformers' `generate`, as a LogitsProcessor. lengths: of the batch's rows."""

    def __init__(self, lengths: list[int], prompt_width: int, stop_id: int):
        self.lengths = torch.tensor(lengths)
        self.prompt_width = prompt_width
        self.stop_id = stop_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        drawn = input_ids.shape[1] - self.prompt_width + 1
        return force(scores, self.lengths == drawn, self.stop_id)
