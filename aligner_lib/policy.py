"""The actor side of PPO: a policy that generates, scores tokens and learns, and the reference that it began as.

B rows of a micro batch, S sequence, H hidden, T selected predictions
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.algorithms.ppo import response_mask
from aligner_lib.megatron import parallel
from aligner_lib.megatron.cpu import DEVICE
from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.logprobs import logprobs_and_entropy, token_logprobs
from aligner_lib.records import Rollouts, pad_rows
from aligner_lib.tokenizer import Tokenizer


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

    def rollout(self, prompts: list[list[int]], seeds: list[int], micro_batch_size: int) -> Rollouts:
        """One sampled response to each prompt (token ids)."""
        self.engine.rest()
        responses = generate(
            self.engine.module,
            prompts,
            seeds,
            self.sampling,
            stop_id=self.tokenizer.eos_id,
            decode=self.tokenizer.decode,
            micro_batch_size=micro_batch_size,
        )
        rows = [prompt + response.tokens for prompt, response in zip(prompts, responses)]
        tokens, lengths = pad_rows(rows, self.tokenizer.pad_id)
        return Rollouts(
            tokens=tokens,
            lengths=lengths,
            prompt_lengths=torch.tensor([len(prompt) for prompt in prompts]),
            ended=torch.tensor([response.ended for response in responses]),
        )

    def logprobs(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """The policy's log-probabilities of the response tokens, and its entropies there: float32 [B, S-1] each."""
        return self._forward(rollouts, with_entropy=True)

    def reference_logprobs(self, rollouts: Rollouts) -> Tensor:
        """The reference's log-probabilities of the same tokens: float32 [B, S-1]."""
        with self.reference.in_place():
            return self._forward(rollouts, with_entropy=False)[0]

    def _forward(self, rollouts: Rollouts, with_entropy: bool) -> tuple[Tensor, Tensor]:
        """Teacher-forced log-probabilities and entropies, 0 outside the responses."""

        def function(model, batch, hidden):
            mask = response_mask(batch.prompt_lengths, batch.lengths, batch.tokens.shape[1] - 1).bool()
            logprobs, entropy = selected_logprobs(
                model, batch.tokens, hidden, mask, self.sampling.temperature, with_entropy
            )
            rows = torch.zeros(2, *mask.shape)
            rows[0][mask] = logprobs.cpu()
            if entropy is not None:
                rows[1][mask] = entropy.cpu()
            return rows.transpose(0, 1)  # [B, 2, S-1]

        rows = map_rows(self.engine, rollouts, function, self.forward_micro_batch_size)
        return rows[:, 0], rows[:, 1]


def selected_logprobs(
    model, tokens: Tensor, hidden: Tensor, mask: Tensor, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (and entropies) of the tokens that mask selects; logits are computed for these alone.

    tokens: int64 [B, S]; hidden: [S, B, H]; mask: bool [B, S-1] → float32 [T], in row order.
    """
    mask = mask.to(hidden.device)
    logits = model.logits(hidden[:-1].transpose(0, 1)[mask])
    if temperature != 1.0:
        logits = logits / temperature
    targets = tokens[:, 1:].to(hidden.device)[mask]
    if with_entropy:
        return logprobs_and_entropy(logits, targets, parallel.tp_group())
    return token_logprobs(logits, targets, parallel.tp_group()), None


def map_rows(
    engine: Engine, batch: Rollouts, function: Callable, micro_batch_size: int, extra: int = 0
) -> Tensor:
    """function's rows over length-grouped micro batches, put back in order and padded: float32 [size, ..., S-1 + extra]."""
    groups = length_grouped(batch.lengths.tolist(), micro_batch_size)
    results = engine.map([batch.rows(group).to(DEVICE) for group in groups], function)
    out = torch.zeros(batch.size, *results[0].shape[1:-1], batch.tokens.shape[1] - 1 + extra)
    for group, result in zip(groups, results):
        out[torch.tensor(group), ..., : result.shape[-1]] = result.float().cpu()
    return out
