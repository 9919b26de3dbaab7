"""The precision in which models compute on the job's machine, for a value of trainer.precision.

Without bf16 units, a CPU takes three to thirty times as long for a bf16 product as for a float32 product. Therefore models
compute in bf16 on a GPU, and on a CPU that multiplies bf16 numbers in hardware: by AMX tiles or by AVX512-BF16.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median

import torch
import torch.nn.functional as F

from aligner_lib.megatron import cpu

PROBE_SECONDS, FEWEST_ROUNDS = 0.05, 5
CLEARLY = (
    1.25  # bf16 takes about half of float32's time where it is in hardware, and many times as long elsewhere
)
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
    """The faster precision for a product and an attention on this machine, "bf16" or "32". Only CPUs are measured.

    float32 has to be faster by CLEARLY: precisions draw different tokens, so every job of a machine should choose alike.
    """
    if cpu.HAS_CUDA or not has_bf16_units():
        return "bf16" if has_bf16_units() else "32"
    seconds = probe()
    return "32" if seconds["bf16"] > CLEARLY * seconds["32"] else "bf16"


@cache
def probe() -> dict[str, float]:
    """The seconds for a product and an attention in this process, by precision: the median of several rounds.

    Each round times both precisions, so that other programs on the processor slow down both alike.
    """
    compute = {precision: _layer_like(dtype) for precision, dtype in DTYPES.items()}
    times: dict[str, list[float]] = {precision: [] for precision in DTYPES}
    end = time.perf_counter() + PROBE_SECONDS
    with torch.inference_mode():
        for once in compute.values():  # libraries set themselves up
            once()
        while len(times["32"]) < FEWEST_ROUNDS or time.perf_counter() < end:
            for precision, once in compute.items():
                start = time.perf_counter()
                once()
                times[precision].append(time.perf_counter() - start)
    return {precision: median(seconds) for precision, seconds in times.items()}


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
