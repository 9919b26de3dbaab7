"""A generation step as a CUDA graph: the GPU repeats recorded kernels, and Python starts none of them.

Without a graph, a token costs the start of some 3,500 operations, one after another, for which a GPU
probably waits longer than for the operations.

B rows of the batch, H hidden
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aligner_lib.megatron import cpu, parallel
from aligner_lib.megatron.attention import KVCache

WORTH_CAPTURING = 8  # steps; a capture costs about three steps

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records a function without arguments. Returns a function that repeats the recorded operations on the same tensors, and the
result, which every repetition overwrites."""


def capture_for(model) -> Capture | None:
    """The way in which a model's steps are recorded: a CUDA graph; None without `Numerics.cuda_graphs`, on a CPU, and where ranks
    share the model, because the messages between them are not captured."""
    alone = parallel.tp_size() == parallel.pp_size() == 1
    return cuda_graph if getattr(model, "captures_steps", False) and cpu.HAS_CUDA and alone else None


def cuda_graph(step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record a function as a CUDA graph. The function runs twice, so a second run must not change what the first has written."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # libraries set themselves up in their first call, which can't be captured
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = step()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, result


class CapturedStep:
    """The model's step for one more token of each row, recorded once and then repeated.

    A graph has fixed addresses and shapes, so it serves until the rows or columns of the cache are arranged anew. Attention reads
    all columns of the cache, and the mask hides those that are still empty.
    """

    def __init__(self, model, cache: KVCache, capture: Capture):
        """cache: its last column is not filled yet."""
        self._cache = cache
        device = cache.starts.device
        self._tokens = torch.zeros(len(cache.starts), 1, dtype=torch.int64, device=device)
        self._column = torch.full((1,), cache.sequence_len_offset, dtype=torch.int64, device=device)
        with cache.fixed(self._column):
            self._repeat, self._hidden = capture(lambda: model(self._tokens, cache=cache))

    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens int64 [B, 1] → hidden states [1, B, H] in the model's dtype, which the next call overwrites."""
        self._tokens.copy_(tokens)
        self._column.fill_(self._cache.sequence_len_offset)
        self._repeat()
        return self._hidden
