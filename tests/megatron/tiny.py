"""Tiny models with random weights large enough that every token counts, and batches of uneven samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from aligner_lib.algorithms.batching import length_grouped, share_of_rank
from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.models.architecture import Architecture

ARCHITECTURE = Architecture(
    num_layers=4,
    hidden_size=48,
    num_attention_heads=4,
    num_query_groups=2,
    ffn_hidden_size=64,
    vocab_size=96,
    max_position_embeddings=128,
    kv_channels=16,  # not hidden / heads: a model may choose
    rotary_base=5000.0,
    norm_epsilon=1e-5,
    tied_embeddings=False,
)
MODELS = {
    "untied": ARCHITECTURE,
    "tied": replace(ARCHITECTURE, tied_embeddings=True),
    "scalar": replace(ARCHITECTURE, head="scalar"),
}
OPTIM = {"lr": 1e-2, "weight_decay": 0.1, "betas": [0.9, 0.98], "eps": 1e-8}
CLIP = 0.5  # below the norms that occur, so that the clip, too, has to be the same everywhere


@dataclass
class Samples(TokenBatch):
    """Token rows with a weight for each prediction: uneven in length and in what counts."""

    weights: torch.Tensor  # float32 [B, S-1]

    @staticmethod
    def draw(count: int, seed: int) -> Samples:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 20, (count,), generator=generator).tolist()
        rows = [
            torch.randint(0, ARCHITECTURE.vocab_size, (n,), generator=generator).tolist() for n in lengths
        ]
        tokens, lengths = pad_rows(rows, 0)
        weights = (torch.rand(count, tokens.shape[1] - 1, generator=generator) < 0.6).float()
        weights *= torch.arange(tokens.shape[1] - 1) < lengths[:, None] - 1
        return Samples(tokens, lengths, weights)

    def micro_batches(self, size: int, rank: int = 0, ranks: int = 1) -> list[Samples]:
        """This rank's share in micro batches of at most `size`."""
        share = self.rows(share_of_rank(range(self.size), rank, ranks))
        return [share.rows(group) for group in length_grouped(share.lengths.tolist(), size)]


def new_engine(
    name: str, start: Path | None = None, clip: float = CLIP, lora=None, num_layers_unfrozen=None, **numerics
):
    """A trainable engine; with `start`, it has that checkpoint's weights. lora: a LoRA, in place of all weights."""
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    engine = Engine(MODELS[name], Numerics(**numerics), OPTIM, clip, lora, num_layers_unfrozen)
    if start is not None:
        engine.load(start)
    return engine


def randomize(model, seed: int) -> None:
    """Weights of N(0, 0.15), norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = 0.15 * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise if parameter.dim() > 1 else 1 + noise)


def language_loss(model, batch: Samples, hidden, entropy_bonus: float = 0.0):
    """Weighted negative log-likelihood less an entropy bonus, and the entropy as a metric."""
    from aligner_lib.megatron.engine import LossTerms
    from aligner_lib.megatron.logprobs import selected_logprobs

    logprobs, entropy = selected_logprobs(
        model, batch.tokens, hidden, batch.weights.bool(), with_entropy=True
    )
    loss = -(logprobs + entropy_bonus * entropy).sum()
    return LossTerms(loss, batch.weights.sum(), {"entropy": entropy.sum().detach()})


def value_loss(model, batch: Samples, hidden):
    """Squared distance of each value from its token's number."""
    from aligner_lib.megatron.engine import LossTerms

    values = model.values(hidden[:-1]).t()
    errors = (values - batch.tokens[:, 1:] / 32) ** 2 * batch.weights
    return LossTerms(errors.sum(), batch.weights.sum(), {"values": (values.detach() * batch.weights).sum()})


def loss_of(name: str):
    return value_loss if name == "scalar" else partial(language_loss, entropy_bonus=0.2)
