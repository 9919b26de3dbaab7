"""Qwen 3: Qwen 2 with norms of each head's query and key instead of the biases.

Source: Yang et al. 2025 (arXiv:2505.09388).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family
from aligner_lib.models.families.qwen2 import read_qwen, write_qwen
from aligner_lib.models.families.settings import Settings


def from_hf(settings: Settings) -> Architecture:
    arch = read_qwen(settings.with_defaults(head_dim=128))
    return replace(arch, family="qwen3", qk_norm=True)


FAMILY = Family("qwen3", "qwen3", "Qwen3", from_hf, write_qwen)
