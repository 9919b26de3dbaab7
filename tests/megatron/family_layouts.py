"""What one process and layouts of two give for a model of each family; each rank runs `measure_all`."""

from __future__ import annotations

from pathlib import Path

import tiny
import torch
from layouts import SEQUENCE_PARALLEL, in_each_layout
from megatron.core.dist_checkpointing.mapping import is_main_replica
from tiny_families import NAMES

from aligner_lib.datasets.batches import pad_rows
from aligner_lib.megatron import checkpoint, cpu, parallel
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.logprobs import gather_vocab
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.tensor_store import StoreWriter

# sequence-parallel ranks split each weight as other tensor-parallel ranks do, and the norms' work besides
LAYOUTS = (SEQUENCE_PARALLEL, "pp2")
STOP = 1
NEW_TOKENS = 8


def rows() -> list[list[int]]:
    """Two rows that begin alike, longer than any sliding window; one shorter than all; one by itself."""
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randint(2, 1024, (n,), generator=generator).tolist() for n in (23, 9, 17))
    return [first, [*first[:11], *second], third[:3], third]


def batch() -> tiny.Samples:
    tokens, lengths = pad_rows(rows(), 0)
    weights = (torch.arange(tokens.shape[1] - 1) < lengths[:, None] - 1).float()
    return tiny.Samples(tokens, lengths, weights)


def micro_batches() -> list[tiny.Samples]:
    return [batch().rows([0, 1, 2]), batch().rows([3])]


def measure_all(starts: Path, out: Path) -> None:
    for layout in in_each_layout(*LAYOUTS):
        for name in NAMES:
            start, shared = starts / name / "imported", layout == SEQUENCE_PARALLEL
            measure(start, out / layout / name, sequence_parallel=shared)


def measure(start: Path, out: Path, **numerics) -> None:
    """Leaves logits of each micro batch, greedy continuations, and the gradient of one batch in `out`."""
    engine = Engine(Architecture.load(start), Numerics(**numerics), tiny.OPTIM)
    engine.load(start)
    logits = engine.map(micro_batches(), all_logits)
    sampling = Sampling(max_length=NEW_TOKENS, greedy=True)
    responses = generate(engine.module, rows(), [0] * len(rows()), sampling, stop_ids=[STOP])
    save_gradients(engine, out / "gradients")
    if parallel.is_first_rank():
        continuations = [response.tokens for response in responses]
        torch.save({"logits": logits, "continuations": continuations}, out / "figures.pt")


def all_logits(model, _, hidden) -> torch.Tensor:
    """hidden [S, B, H] → float [B, S, V] of the whole vocabulary."""
    logits = model.logits(hidden.flatten(0, 1))
    return gather_vocab(logits, parallel.tp_group()).view(*hidden.shape[:2], -1).transpose(0, 1)


def save_gradients(engine: Engine, folder: Path) -> None:
    """The gradient of the mean negative log-likelihood, as a store of the weights' names."""
    with cpu.as_cuda():
        engine.module.train()
        engine._wrapped.zero_grad_buffer()
        engine.optimizer.zero_grad()
        engine._run(micro_batches(), tiny.language_loss, forward_only=False)
    writer = StoreWriter(folder, parallel.rank())
    for parameter, shards in checkpoint._shards(engine.module):
        for shard, start, end in shards:
            if is_main_replica(shard.replica_id):
                part = parameter.main_grad.flatten()[start:end].view(shard.local_shape)
                writer.add(checkpoint._block(shard), part.clone())
    writer.flush()
