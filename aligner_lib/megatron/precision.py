"""The precision in which models compute on the job's machine, for a value of trainer.precision.

Without bf16 units, a CPU takes three to thirty times as long for a bf16 product as for a float32 product. Therefore models
compute in bf16 on a GPU, and on a CPU that multiplies bf16 numbers in hardware: by AMX tiles or by AVX512-BF16.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from aligner_lib.megatron import cpu

PROBE_SECONDS = 0.05
# shape of the probe's product: the first product of SmolLM2-135M's MLP
ROWS, INPUTS, OUTPUTS = 512, 576, 1536
HEADS = (2, 9, 128, 64)  # shape of the probe's attention: sequences, heads, tokens, head size


def has_bf16_units() -> bool:
    """Whether bf16 products are fast on this machine."""
    if cpu.HAS_CUDA:
        return torch.cuda.is_bf16_supported()
    units = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return units and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def computed_precision(setting: str) -> str:
    """The precision in which models compute for a value of trainer.precision: "bf16" or "32".

    setting: "bf16", "32", or "auto" for the faster precision.
    """
    if setting == "auto":
        return faster_precision()
    return "bf16" if setting == "bf16" and (cpu.HAS_CUDA or has_bf16_units()) else "32"


def faster_precision() -> str:
    """The faster precision for a product and an attention on this machine, "bf16" or "32". Only CPUs are measured."""
    if cpu.HAS_CUDA or not has_bf16_units():
        return "bf16" if has_bf16_units() else "32"
    seconds = probe()
    return min(seconds, key=seconds.get)


@cache
def probe() -> dict[str, float]:
    """The seconds for a product and an attention in this process, by precision: the best of several runs."""
    return {precision: _best_seconds(_layer_like(dtype)) for precision, dtype in DTYPES.items()}


DTYPES = {"bf16": torch.bfloat16, "32": torch.float32}


def _layer_like(dtype: torch.dtype) -> Callable[[], object]:
    """A function that computes a product in a dtype, and an attention as the models do: in float32, between casts."""
    x, weight, heads = torch.ones(ROWS, INPUTS), torch.ones(OUTPUTS, INPUTS), torch.ones(HEADS)
    x, weight, heads = x.to(dtype), weight.to(dtype), heads.to(dtype)

    def compute():
        F.linear(x, weight)
        wide = heads.float()
        F.scaled_dot_product_attention(wide, wide, wide, is_causal=True).to(dtype)

    return compute


def _best_seconds(compute: Callable[[], object]) -> float:
    """The shortest time of at least three calls. Further calls fill the precision's part of PROBE_SECONDS."""
    times: list[float] = []
    end = time.perf_counter() + PROBE_SECONDS / len(DTYPES)
    with torch.inference_mode():
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            compute()
            times.append(time.perf_counter() - start)
    return min(times)
