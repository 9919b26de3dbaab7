"""The hand-offs between the stages of a step with rollouts: one small typed record each.

    B responses of this rank, S longest row: prompt, response and the observations between its turns

[B, S-1] tensors follow aligner_lib.algorithms.ppo: index i belongs to the prediction of token i+1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from aligner_lib.datasets.batches import TokenBatch


@dataclass
class Rollouts(TokenBatch):
    """Prompts and the policy's responses. The mask selects a response's tokens, and may have gaps."""

    response_mask: Tensor
    """bool [B, S-1], True where token i+1 is the policy's own, the stop token included."""
    finished: Tensor
    """bool [B], whether the response ended with a stop token or an end string."""
    group: Tensor
    """int64 [B], the number of the response's prompt in the step."""
    sampler_logprobs: Tensor
    """float32 [B, S-1], log-probabilities of the response's tokens under the distribution that they were drawn from, as
    generation computed them."""

    @property
    def prompt_lengths(self) -> Tensor:
        """Tokens before the response's first token: int64 [B]."""
        return self.response_mask.int().argmax(dim=1) + 1

    @property
    def generation_lengths(self) -> Tensor:
        """Tokens of the response: int64 [B]."""
        return self.response_mask.sum(dim=1)

    def prompt_tokens(self, row: int) -> list[int]:
        """Token ids of one prompt."""
        return self.tokens[row, : self.prompt_lengths[row]].tolist()

    def response_tokens(self, row: int) -> list[int]:
        """Token ids of one response, the stop token included."""
        return self.tokens[row, 1:][self.response_mask[row]].tolist()


@dataclass
class CriticExperience(TokenBatch):
    """The training data of a critic."""

    response_mask: Tensor
    """bool [B, S-1]."""
    values: Tensor
    """float32 [B, S-1], the critic's outputs at the start of the step."""
    returns: Tensor
    """float32 [B, S-1], what the outputs are to become."""


@dataclass
class Experience(Rollouts):
    """Rollouts with all that a policy learns from."""

    logprobs: Tensor
    """float32 [B, S-1], of the policy that generated the tokens, as training computes them."""
    reference_logprobs: Tensor
    """float32 [B, S-1], of the policy at the start of the run."""
    advantages: Tensor
    """float32 [B, S-1]."""
    loss_mask: Tensor
    """bool [B, S-1], the tokens that the policy may learn from."""
    sampler_weights: Tensor
    """float32 [B, S-1], importance weights of tokens that were drawn from another distribution; 1 without a correction."""

    @property
    def kl(self) -> Tensor:
        """log π − log π_ref of each token in nats, whose mean estimates the KL: float32 [B, S-1], 0 outside responses."""
        return (self.logprobs - self.reference_logprobs) * self.response_mask


@dataclass
class ActorCriticExperience(Experience):
    """Experience with a critic's values and returns."""

    baseline: Tensor
    """float32 [B], what the values of a response begin from: the mean reward of its prompt's responses, or 0."""
    values: Tensor
    """float32 [B, S-1], the baseline plus the critic's outputs at the start of the step."""
    returns: Tensor
    """float32 [B, S-1]."""
    judged: Tensor
    """bool [B], False where an environment failed to give a reward."""

    def for_critic(self) -> CriticExperience:
        """The critic's part of the experience: it learns what the returns are above the baseline."""
        below = self.baseline[:, None] * self.response_mask
        changed = {
            "response_mask": self.response_mask & self.judged[:, None],
            "values": self.values - below,
            "returns": self.returns - below,
        }
        part = {f.name: getattr(self, f.name) for f in fields(CriticExperience)}
        return CriticExperience(**part | changed)


@dataclass
class WeightedBatch(Experience):
    """A global batch of experience, or a part of one, ready for the loss."""

    token_weights: Tensor
    """float32 [B], the weight of each response's token losses in the mean over all tokens."""
