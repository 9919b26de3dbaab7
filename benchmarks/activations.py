"""`python -m benchmarks.activations`: the bytes kept by a forward pass for its backward pass, by the kind of recomputation.

The benchmark counts bytes, not seconds, because bytes are the same on every machine. The model has SmolLM2-135M's shape and
random weights.
"""

from __future__ import annotations

import torch
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.options import documented_parser

ROWS, LENGTH = 2, 256
KINDS = {  # name → settings of Numerics
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full"},
}


def kept_bytes(module, tokens: torch.Tensor, lengths: torch.Tensor) -> int:
    """Bytes that a forward pass of a model in training mode keeps for the backward pass, without the weights.

    tokens: int64 [B, S]; lengths: int64 [B].
    """
    from aligner_lib.megatron import cpu

    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with cpu.as_cuda(), saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = module.train()(tokens, lengths)
    assert hidden.requires_grad  # the live graph has kept all saved tensors until here
    return sum(size for place, size in kept.items() if place not in weights)


def main(words: list[str] | None = None) -> None:
    documented_parser("activations", __doc__).parse_args(words)
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.model import Numerics, build_model
    from aligner_lib.models.architecture import Architecture

    parallel.initialize()
    shape = Architecture(
        num_layers=30,
        hidden_size=576,
        num_attention_heads=9,
        num_query_groups=3,
        ffn_hidden_size=1536,
        vocab_size=49152,
        max_position_embeddings=2048,
        kv_channels=64,
        rotary_base=100_000.0,
        norm_epsilon=1e-5,
        tied_embeddings=True,
    )
    tokens = torch.randint(shape.vocab_size, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    padded = torch.full((ROWS,), LENGTH)
    padded[1:] = LENGTH // 2
    print(
        "| recomputation | KiB a token, no padding | KiB a token, a quarter is padding |\n| --- | --- | --- |"
    )
    for name, numerics in KINDS.items():
        module = build_model(shape, Numerics(**numerics))
        a_token = [
            kept_bytes(module, tokens, lengths) / int(lengths.sum()) / 1024
            for lengths in (torch.full((ROWS,), LENGTH), padded)
        ]
        print(f"| {name} | {a_token[0]:,.0f} | {a_token[1]:,.0f} |")


if __name__ == "__main__":
    main()
