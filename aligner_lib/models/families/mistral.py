"""Mistral 7B and its successors: Llama, with a sliding window in the first release.

Source: Jiang et al. 2023 (arXiv:2310.06825).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family
from aligner_lib.models.families.llama import read_llama, write_llama
from aligner_lib.models.families.settings import Settings

DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096}


def from_hf(settings: Settings) -> Architecture:
    settings = settings.with_defaults(**DEFAULTS)
    arch = replace(read_llama(settings), family="mistral")
    window = settings.count("sliding_window", None)
    return replace(
        arch, sliding_window=window, sliding_layers=tuple(range(arch.num_layers)) if window else ()
    )


def to_hf(arch: Architecture) -> dict:
    return {**write_llama(arch), "sliding_window": arch.sliding_window}


FAMILY = Family("mistral", "mistral", "Mistral", from_hf, to_hf)
