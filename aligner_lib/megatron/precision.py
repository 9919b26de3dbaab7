"""In which precision models compute here: what trainer.precision becomes on the machine that runs the job.

Without units for bf16 a CPU takes three to thirty times as long for a product in bf16 as for one in float32. Therefore
bf16 is computed on a GPU, and on a CPU that multiplies bf16 numbers itself: by AMX tiles or by AVX512-BF16.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from aligner_lib.megatron import cpu

PROBE_SECONDS = 0.05
ROWS, INPUTS, OUTPUTS = 512, 576, 1536  # of the probe's product: the first of SmolLM2-135M's MLP
HEADS = (2, 9, 128, 64)  # of the probe's attention: sequences, heads, tokens, a head's size


def has_bf16_units() -> bool:
    """Whether bf16 products are quick on this machine."""
    if cpu.HAS_CUDA:
        return torch.cuda.is_bf16_supported()
    units = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return units and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def computed_precision(setting: str) -> str:
    """The precision in which models compute with this value of trainer.precision: "bf16" or "32".

    setting: "bf16", "32", or "auto" for the faster one.
    """
    if setting == "auto":
        return faster_precision()
    return "bf16" if setting == "bf16" and (cpu.HAS_CUDA or has_bf16_units()) else "32"


def faster_precision() -> str:
    """The precision in which a product and an attention take less time here, "bf16" or "32"; measured on a CPU alone."""
    if cpu.HAS_CUDA or not has_bf16_units():
        return "bf16" if has_bf16_units() else "32"
    seconds = probe()
    return min(seconds, key=seconds.get)


@cache
def probe() -> dict[str, float]:
    """The seconds that a product and an attention of this process take, by precision: the best of several each."""
    return {precision: _best_seconds(_layer_like(dtype)) for precision, dtype in DTYPES.items()}


DTYPES = {"bf16": torch.bfloat16, "32": torch.float32}


def _layer_like(dtype: torch.dtype) -> Callable[[], object]:
    """A matrix product in a dtype, and an attention as the models compute it: in float32, between casts."""
    x, weight, heads = torch.ones(ROWS, INPUTS), torch.ones(OUTPUTS, INPUTS), torch.ones(HEADS)
    x, weight, heads = x.to(dtype), weight.to(dtype), heads.to(dtype)

    def compute():
        F.linear(x, weight)
        wide = heads.float()
        F.scaled_dot_product_attention(wide, wide, wide, is_causal=True).to(dtype)

    return compute


def _best_seconds(compute: Callable[[], object]) -> float:
    """The shortest of the calls that fit into this precision's part of PROBE_SECONDS; of three at least."""
    times: list[float] = []
    end = time.perf_counter() + PROBE_SECONDS / len(DTYPES)
    with torch.inference_mode():
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            compute()
            times.append(time.perf_counter() - start)
    return min(times)
