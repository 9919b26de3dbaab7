"""A policy that generates responses, scores tokens and learns, and its reference.

B rows, S sequence length
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aligner_lib.datasets.batches import pad_rows
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.megatron.generate import Response, Sampling
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.megatron.whole_weights import WholeWeights
from aligner_lib.models import names
from aligner_lib.rollouts.generators.megatron import MegatronGenerator
from aligner_lib.rollouts.interfaces import GenerationBatch, Generator
from aligner_lib.rollouts.records import Rollouts


@dataclass
class TokenScorer:
    """A language model as a scorer: computes the log-probabilities of given responses."""

    engine: Engine
    temperature: float
    micro_batch_size: int
    """Rows in one forward pass."""

    def __call__(self, rollouts: Rollouts, with_entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Teacher-forced log-probabilities and entropies: float32 [B, S-1] each, 0 outside the responses. Without
        `with_entropy`, all entropies are 0."""

        def function(model, batch, hidden):
            mask = batch.response_mask
            logprobs, entropy = selected_logprobs(
                model, batch.tokens, hidden, mask, self.temperature, with_entropy
            )
            # a single tensor, for the exchange between pipeline stages
            rows = torch.zeros(2, *mask.shape, device=mask.device)
            rows[0][mask] = logprobs
            if entropy is not None:
                rows[1][mask] = entropy
            return rows.transpose(0, 1)  # [B, 2, S-1]

        rows = self.engine.map_rows(rollouts, function, self.micro_batch_size)
        return rows[:, 0], rows[:, 1]


class Policy:
    """A language model's engine with the methods that rollouts need.

    generator: generates responses with the policy's weights; None: the engine's own module generates the responses. reference: the
    reference's weights; None: a copy of the engine's weights at construction.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        forward_micro_batch_size: int,
        generator: Generator | None = None,
        reference: FrozenWeights | None = None,
    ):
        self.engine = engine
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.forward_micro_batch_size = forward_micro_batch_size
        self.reference = reference or FrozenWeights(engine.module)
        self.generator = generator or MegatronGenerator(engine, tokenizer)
        self._generates_at: int | None = None  # the optimizer step whose weights the generator has

    @property
    def computes_in_bf16(self) -> bool:
        """Whether forward passes round to bf16. If so, generation and training differ by rounding."""
        return self.engine.module.config.bf16

    def refresh_generator(self) -> None:
        """Give the generator the current weights. All ranks call this method together, before a rollout."""
        if self._generates_at != self.engine.steps:
            self.generator.refresh(hf_weights(self.engine))
            self._generates_at = self.engine.steps

    def rollout(self, prompts: list[list[int]], seeds: list[int], group: list[int]) -> Rollouts:
        """Sample a response to each prompt (token ids), all in the same batch. group: the number of each prompt in the step."""
        return to_rollouts(prompts, self.respond(prompts, seeds), group, self.tokenizer.pad_id)

    def respond(self, prompts: list[list[int]], seeds: list[int]) -> list[Response]:
        """Responses as in `rollout`, without a record."""
        batch = self.batch(len(prompts))
        responses = [batch.add(prompt, seed, self.sampling) for prompt, seed in zip(prompts, seeds)]
        batch.run()
        return responses

    def batch(self, rows: int) -> GenerationBatch:
        """A batch to which prompts are added. rows: how many responses the batch generates at the same time."""
        self.engine.offload_optimizer()
        return self.generator.batch(rows)

    def logprobs(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """The policy's log-probabilities of the response tokens, and its entropies at these positions: float32 [B, S-1]
        each."""
        return self._scorer()(rollouts, with_entropy=True)

    def reference_logprobs(self, rollouts: Rollouts) -> Tensor:
        """The reference's log-probabilities of the response tokens: float32 [B, S-1]."""
        with self.reference.swap_in():
            return self._scorer()(rollouts)[0]

    def _scorer(self) -> TokenScorer:
        return TokenScorer(self.engine, self.sampling.temperature, self.forward_micro_batch_size)


def hf_weights(engine: Engine) -> Iterator[tuple[str, Tensor]]:
    """A language model's weights under Hugging Face's names, unsharded and on the CPU, one Megatron weight at a time.

    Every rank iterates over the weights, because assembling a weight is a collective operation. Only the first rank receives
    tensors.
    """
    arch, whole = engine.module.architecture, WholeWeights(engine.module)
    plan = list(names.weights(arch))
    unnamed = whole.names - {weight.megatron for weight in plan}
    assert not unnamed, f"Hugging Face has no names for {sorted(unnamed)}"
    for weight in plan:
        fused = whole.read(weight.megatron)
        if fused is not None:
            yield from zip(weight.hf, names.to_hf(weight, fused, arch))


def to_rollouts(
    prompts: list[list[int]], responses: list[Response], group: list[int], pad_id: int
) -> Rollouts:
    """Prompts and single-turn responses as a record."""
    return transcribed(
        [Transcript(prompt).add(response) for prompt, response in zip(prompts, responses)], group, pad_id
    )


@dataclass
class Transcript:
    """The tokens of an episode: the prompt, the policy's responses and the environment's observations. No loss covers the
    observations."""

    tokens: list[int]
    logprobs: list[float | None] = field(init=False)
    """The log-probability of each token that the policy sampled; None for all other tokens."""
    finished: bool = field(init=False, default=False)
    """Whether the last response ended with a stop token or an end string, not at a length limit."""

    def __post_init__(self):
        self.tokens, self.logprobs = list(self.tokens), [None] * len(self.tokens)

    def add(self, response: Response) -> Transcript:
        """Append the policy's response. Returns this transcript."""
        assert len(response.tokens) == len(response.logprobs)
        self.tokens += response.tokens
        self.logprobs += response.logprobs
        self.finished = response.finished
        return self

    def observe(self, tokens: list[int]) -> None:
        """Append the tokens of an environment's observation."""
        self.tokens += tokens
        self.logprobs += [None] * len(tokens)


def transcribed(transcripts: list[Transcript], group: list[int], pad_id: int) -> Rollouts:
    """Transcripts as a record."""
    tokens, lengths = pad_rows([transcript.tokens for transcript in transcripts], pad_id)
    mask = torch.zeros(tokens.shape[0], tokens.shape[1] - 1, dtype=torch.bool)
    logprobs = torch.zeros(mask.shape)
    for row, transcript in enumerate(transcripts):
        own = [place - 1 for place, value in enumerate(transcript.logprobs) if value is not None]
        mask[row, own] = True
        logprobs[row, own] = torch.tensor([value for value in transcript.logprobs if value is not None])
    return Rollouts(
        tokens=tokens,
        lengths=lengths,
        response_mask=mask,
        finished=torch.tensor([transcript.finished for transcript in transcripts]),
        group=torch.tensor(group),
        sampler_logprobs=logprobs,
    )
