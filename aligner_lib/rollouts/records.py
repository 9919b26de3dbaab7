"""The hand-offs between the stages of a step with rollouts: one small typed record each.

    B responses of this rank, S longest row: prompt, response and what came between its turns

[B, S-1] tensors follow aligner_lib.algorithms.ppo: index i belongs to the prediction of token i+1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch


@dataclass
class Rollouts(TokenBatch):
    """Prompts and the policy's responses to them. A response is what its mask says, and may have holes."""

    response_mask: Tensor  # bool [B, S-1], where token i+1 is the policy's own, the stop token included
    finished: Tensor  # bool [B], by the stop token or an end string
    group: Tensor  # int64 [B], which of the step's prompts it answers

    @property
    def prompt_lengths(self) -> Tensor:
        """Tokens before the first one of the response: int64 [B]."""
        return self.response_mask.int().argmax(dim=1) + 1

    @property
    def generation_lengths(self) -> Tensor:
        """Tokens of the response alone: int64 [B]."""
        return self.response_mask.sum(dim=1)

    def prompt_tokens(self, row: int) -> list[int]:
        """Token ids of one prompt."""
        return self.tokens[row, : self.prompt_lengths[row]].tolist()

    def response_tokens(self, row: int) -> list[int]:
        """Token ids of one response, the stop token included."""
        return self.tokens[row, 1:][self.response_mask[row]].tolist()


@dataclass
class CriticExperience(TokenBatch):
    """What a critic learns from."""

    response_mask: Tensor  # bool [B, S-1]
    values: Tensor  # float32 [B, S-1], of the critic when the step began
    returns: Tensor  # float32 [B, S-1]


@dataclass
class Experience(Rollouts):
    """Rollouts with all that training needs."""

    logprobs: Tensor  # float32 [B, S-1], of the policy that generated them
    reference_logprobs: Tensor  # float32 [B, S-1], of the policy that PPO began with
    values: Tensor  # float32 [B, S-1], of the critic when the step began
    advantages: Tensor  # float32 [B, S-1]
    returns: Tensor  # float32 [B, S-1]
    loss_mask: Tensor  # bool [B, S-1], the tokens that the actor learns from; the critic learns from the whole response

    @property
    def kl(self) -> Tensor:
        """log π − log π_ref of each token in nats, whose mean estimates the KL: float32 [B, S-1], 0 outside responses."""
        return (self.logprobs - self.reference_logprobs) * self.response_mask

    def for_critic(self) -> CriticExperience:
        """The critic's part of it."""
        return CriticExperience(**{f.name: getattr(self, f.name) for f in fields(CriticExperience)})
