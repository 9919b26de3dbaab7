"""Mistral 7B and its successors: Llama, with a sliding window in the first release.

Source: Jiang et al. 2023 (arXiv:2310.06825).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import FULL, SLIDING, Family
from aligner_lib.models.families.llama import read_llama, write_llama
from aligner_lib.models.families.settings import Settings

DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096}


def read_mistral(settings: Settings) -> Architecture:
    """Mistral's architecture, or the part of another family that equals Mistral's."""
    settings = settings.with_defaults(**DEFAULTS)
    arch = replace(read_llama(settings), family="mistral")
    window = settings.count("sliding_window", None)
    return replace(
        arch, sliding_window=window, sliding_layers=tuple(range(arch.num_layers)) if window else ()
    )


def from_hf(settings: Settings) -> Architecture:
    arch = read_mistral(settings)
    # transformers reads a Mistral with layer_types as a Ministral, and Phi-3 ignores the setting
    kinds = {*(settings.listed("layer_types", arch.num_layers) or [])}
    kind = SLIDING if arch.sliding_layers else FULL
    if kinds - {kind}:
        raise settings.refuse(
            f"layer_types has {', '.join(sorted(map(str, kinds)))}; with sliding_window={arch.sliding_window}, only {kind} can be read "
            "in mistral: take a Mistral without layer_types"
        )
    return arch


def write_mistral(arch: Architecture) -> dict:
    """The inverse of `read_mistral`."""
    return {**write_llama(arch), "sliding_window": arch.sliding_window}


FAMILY = Family("mistral", "mistral", "Mistral", from_hf, write_mistral)
