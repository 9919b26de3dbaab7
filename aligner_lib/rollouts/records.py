"""The records that one stage of a rollout step hands to the next.

Dimensions: B responses of this rank; S tokens of the longest row, which has the prompt, the response and the observations
between its turns.

[B, S-1] tensors follow aligner_lib.algorithms.ppo: index i belongs to the prediction of token i+1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch


@dataclass
class Rollouts(TokenBatch):
    """Prompts and the policy's responses. `response_mask` selects a response's tokens, and has gaps between several turns."""

    response_mask: Tensor
    """bool [B, S-1], True where the policy generated token i+1; the stop token is included."""
    finished: Tensor
    """bool [B], whether the response ended with a stop token or an end string."""
    group: Tensor
    """int64 [B], the number of the response's prompt in the step."""
    sampler_logprobs: Tensor
    """float32 [B, S-1], log-probabilities of the response's tokens under the distribution from which generation sampled, as
    computed by generation."""

    @property
    def prompt_lengths(self) -> Tensor:
        """Tokens before the response's first token: int64 [B]."""
        return self.response_mask.int().argmax(dim=1) + 1

    @property
    def generation_lengths(self) -> Tensor:
        """Tokens of the response: int64 [B]."""
        return self.response_mask.sum(dim=1)

    @property
    def last_turn_lengths(self) -> Tensor:
        """Tokens of the response's last turn: int64 [B]."""
        places = torch.arange(1, self.response_mask.shape[1] + 1)
        end = (self.response_mask * places).amax(dim=1)
        before = ~self.response_mask & (places < end[:, None])
        return end - (before * places).amax(dim=1)

    def prompt_tokens(self, row: int) -> list[int]:
        """Token ids of one row's prompt."""
        return self.tokens[row, : self.prompt_lengths[row]].tolist()

    def response_tokens(self, row: int) -> list[int]:
        """Token ids of one row's response, the stop token included."""
        return self.tokens[row, 1:][self.response_mask[row]].tolist()


@dataclass
class CriticExperience(TokenBatch):
    """The training data of a critic."""

    response_mask: Tensor
    """bool [B, S-1]."""
    values: Tensor
    """float32 [B, S-1], the critic's outputs at the start of the step."""
    returns: Tensor
    """float32 [B, S-1], the targets of the critic's outputs."""


@dataclass
class Experience(Rollouts):
    """Rollouts with everything that the policy's loss needs."""

    logprobs: Tensor
    """float32 [B, S-1], log-probabilities under the policy that generated the tokens, as computed by training."""
    reference_logprobs: Tensor
    """float32 [B, S-1], log-probabilities under the reference, the policy at the start of the run."""
    advantages: Tensor
    """float32 [B, S-1]."""
    loss_mask: Tensor
    """bool [B, S-1], the tokens that the loss covers."""
    sampler_weights: Tensor
    """float32 [B, S-1], importance weights that correct for sampling from another distribution; 1 without a correction."""

    @property
    def kl(self) -> Tensor:
        """log π − log π_ref of each token in nats: float32 [B, S-1], 0 outside responses. Its mean estimates the KL
        divergence."""
        return (self.logprobs - self.reference_logprobs) * self.response_mask


@dataclass
class ActorCriticExperience(Experience):
    """Experience with a critic's values and returns."""

    baseline: Tensor
    """float32 [B], added to all values of a response: the mean reward of its prompt's responses, or 0."""
    values: Tensor
    """float32 [B, S-1], the baseline plus the critic's outputs at the start of the step."""
    returns: Tensor
    """float32 [B, S-1]."""
    has_reward: Tensor
    """bool [B], False where an environment failed to give a reward."""

    def for_critic(self) -> CriticExperience:
        """The critic's part of the experience. The critic's targets are the returns minus the baseline."""
        below = self.baseline[:, None] * self.response_mask
        changed = {
            "response_mask": self.response_mask & self.has_reward[:, None],
            "values": self.values - below,
            "returns": self.returns - below,
        }
        part = {f.name: getattr(self, f.name) for f in fields(CriticExperience)}
        return CriticExperience(**part | changed)


@dataclass
class WeightedBatch(Experience):
    """A global batch of experience, or a part of a global batch, ready for the loss."""

    token_weights: Tensor
    """float32 [B], the weight of each response's token losses in the mean over all tokens."""
