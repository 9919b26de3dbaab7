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


def read_mistral(settings: Settings) -> Architecture:
    """Mistral's architecture, or the part of another family that equals Mistral's."""
    settings = settings.with_defaults(**DEFAULTS)
    arch = replace(read_llama(settings), family="mistral")
    window = settings.count("sliding_window", None)
    return replace(
        arch, sliding_window=window, sliding_layers=tuple(range(arch.num_layers)) if window else ()
    )


def write_mistral(arch: Architecture) -> dict:
    """The inverse of `read_mistral`."""
    return {**write_llama(arch), "sliding_window": arch.sliding_window}


FAMILY = Family("mistral", "mistral", "Mistral", read_mistral, write_mistral)
