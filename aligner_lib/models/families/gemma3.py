"""Gemma 3's text models: Gemma 2 with norms of query and key instead of soft caps.

There are five local layers for each global layer. Local layers have their own base of rotary positions.

Source: Gemma Team 2025 (arXiv:2503.19786).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import FULL, SLIDING, Family, read_rope, read_scaling, read_window
from aligner_lib.models.families.gemma2 import NORMS, read_gemma, write_gemma
from aligner_lib.models.families.settings import Settings

DEFAULTS = {
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}


def from_hf(settings: Settings) -> Architecture:
    settings = settings.with_defaults(**DEFAULTS)
    if (cap := settings.number("attn_logit_softcapping", None)) is not None:
        raise settings.refuse(
            f"attn_logit_softcapping is {cap}, but transformers' Gemma 3 caps no attention scores: set it to null"
        )
    arch = read_gemma(settings)
    window = settings.count("sliding_window", None)
    every = settings.count("sliding_window_pattern")
    local = (layer for layer in range(arch.num_layers) if (layer + 1) % every)
    return replace(
        arch, family="gemma3", qk_norm=True, **_rope(settings), **read_window(settings, window, local)
    )


def _rope(settings: Settings) -> dict:
    """Read the rotary positions. transformers 5 has a section for each kind of layer, earlier releases for global layers."""
    sections = settings.section("rope_parameters")
    if len(sections) and FULL not in sections and SLIDING not in sections:
        raise sections.refuse(
            f"neither {FULL} nor {SLIDING} is there, and transformers reads only these two sections: write the settings into them"
        )
    near = sections.section(SLIDING)
    if read_scaling(near) is not None:
        raise near.refuse("scaled rotary positions in sliding layers are not supported")
    return {
        **read_rope(settings, parameters=sections.section(FULL)),
        "local_rotary_base": near.number("rope_theta", settings.number("rope_local_base_freq")),
    }


def to_hf(arch: Architecture) -> dict:
    return {**write_gemma(arch), "rope_local_base_freq": arch.local_rotary_base}


FAMILY = Family(
    "gemma3", "gemma3_text", "Gemma3", from_hf, to_hf, NORMS, "Gemma3TextForSequenceClassification"
)
