"""OLMo 2: norms behind attention and MLP and none before them, and a norm of all heads' queries, and of all heads' keys.

Source: OLMo Team 2025 (arXiv:2501.00656).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family
from aligner_lib.models.families.llama import read_llama, write_llama
from aligner_lib.models.families.settings import Settings

NORMS = {"after_attention": "post_attention_layernorm", "after_mlp": "post_feedforward_layernorm"}


def from_hf(settings: Settings) -> Architecture:
    arch = read_llama(settings.with_defaults(rms_norm_eps=1e-5))
    return replace(
        arch, family="olmo2", pre_norms=False, post_norms=True, qk_norm=True, qk_norm_over_heads=True
    )


FAMILY = Family("olmo2", "olmo2", "Olmo2", from_hf, write_llama, NORMS)
