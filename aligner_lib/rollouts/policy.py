"""The actor side of PPO: a policy that generates, scores tokens and learns, and the reference that it began as.

B rows, S sequence
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from aligner_lib.algorithms.ppo import response_mask
from aligner_lib.datasets.batches import pad_rows
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.megatron.generate import Response, Sampling, generate
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.rollouts.records import Rollouts


class Policy:
    """A language model's engine with what rollouts need. `reference` are the weights it had when this was made."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling, *, forward_micro_batch_size: int
    ):
        self.engine = engine
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.forward_micro_batch_size = forward_micro_batch_size
        self.reference = FrozenWeights(engine.module)

    def rollout(self, prompts: list[list[int]], seeds: list[int], group: list[int]) -> Rollouts:
        """One sampled response to each prompt (token ids), all in one batch. group: which of the step's prompts they are."""
        self.engine.offload_optimizer()
        responses = generate(
            self.engine.module,
            prompts,
            seeds,
            self.sampling,
            stop_id=self.tokenizer.eos_id,
            # an end string may be a special token, or begin with a space
            decode=partial(self.tokenizer.decode, special_tokens=True, continues=True),
        )
        return to_rollouts(prompts, responses, group, self.tokenizer.pad_id)

    def logprobs(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """The policy's log-probabilities of the response tokens, and its entropies there: float32 [B, S-1] each."""
        return self._forward(rollouts, with_entropy=True)

    def reference_logprobs(self, rollouts: Rollouts) -> Tensor:
        """The reference's log-probabilities of the same tokens: float32 [B, S-1]."""
        with self.reference.swap_in():
            return self._forward(rollouts, with_entropy=False)[0]

    def _forward(self, rollouts: Rollouts, with_entropy: bool) -> tuple[Tensor, Tensor]:
        """Teacher-forced log-probabilities and entropies, 0 outside the responses."""

        def function(model, batch, hidden):
            mask = batch.response_mask
            logprobs, entropy = selected_logprobs(
                model, batch.tokens, hidden, mask, self.sampling.temperature, with_entropy
            )
            rows = torch.zeros(2, *mask.shape, device=mask.device)  # where other stages expect them
            rows[0][mask] = logprobs
            if entropy is not None:
                rows[1][mask] = entropy
            return rows.transpose(0, 1)  # [B, 2, S-1]

        rows = self.engine.map_rows(rollouts, function, self.forward_micro_batch_size)
        return rows[:, 0], rows[:, 1]


def to_rollouts(
    prompts: list[list[int]], responses: list[Response], group: list[int], pad_id: int
) -> Rollouts:
    """Prompts and the responses of one turn to them as one record."""
    rows = [prompt + response.tokens for prompt, response in zip(prompts, responses)]
    tokens, lengths = pad_rows(rows, pad_id)
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts])
    return Rollouts(
        tokens=tokens,
        lengths=lengths,
        response_mask=response_mask(prompt_lengths, lengths, tokens.shape[1] - 1),
        finished=torch.tensor([response.finished for response in responses]),
        group=torch.tensor(group),
    )
