"""The hand-offs between the stages of a step with rollouts: one small typed record each.

    B responses of this rank, S longest prompt + response

[B, S-1] tensors follow aligner_lib.algorithms.ppo: index i belongs to the prediction of token i+1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch


@dataclass
class Rollouts(TokenBatch):
    """Prompts and the policy's responses to them."""

    prompt_lengths: Tensor  # int64 [B]
    finished: Tensor  # bool [B], by the stop token or an end string

    @property
    def response_lengths(self) -> Tensor:
        return self.lengths - self.prompt_lengths

    def prompt_tokens(self, row: int) -> list[int]:
        return self.tokens[row, : self.prompt_lengths[row]].tolist()

    def response_tokens(self, row: int) -> list[int]:
        return self.tokens[row, self.prompt_lengths[row] : self.lengths[row]].tolist()


@dataclass
class Scores:
    """What the critic side says about rollouts."""

    rewards: Tensor  # float32 [B], the reward model's number for each response
    values: Tensor  # float32 [B, S-1], the critic's estimate at each prediction


@dataclass
class Experience(Rollouts):
    """Rollouts with all that training needs: what actor and critic learn from."""

    mask: Tensor  # float32 [B, S-1], 1.0 on response tokens
    logprobs: Tensor  # float32 [B, S-1], of the policy that generated them
    values: Tensor  # float32 [B, S-1], of the critic at that time
    advantages: Tensor  # float32 [B, S-1]
    returns: Tensor  # float32 [B, S-1]
