"""A forward pass through pipeline stages with a KV cache, because Megatron's schedules are for training only."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from aligner_lib.megatron import parallel

from megatron.core import parallel_state


def pass_through_stages(model, tokens: Tensor, cache) -> Tensor:
    """Run one forward pass through all pipeline stages. All stages must make the call together.

    tokens: int64 [B, S]; cache: KVCache. The last stage returns its hidden states [S, B, H] in the model's dtype; the other
    stages return their own output.
    """
    if parallel.pp_size() == 1:
        return model(tokens, cache=cache)
    if not parallel.is_first_stage():
        config = model.config
        hidden = torch.empty(
            tokens.shape[1],
            tokens.shape[0],
            config.hidden_size,
            dtype=config.pipeline_dtype,
            device=tokens.device,
        )
        dist.recv(hidden, src=parallel_state.get_pipeline_model_parallel_prev_rank())
        model.set_input_tensor([hidden])
    output = model(tokens, cache=cache)
    if not parallel.is_last_stage():
        dist.send(output.contiguous(), dst=parallel_state.get_pipeline_model_parallel_next_rank())
    return output
